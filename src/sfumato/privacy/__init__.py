"""The trusted base: everything that an ε depends on. README.md lists its files in reading order."""

from sfumato.privacy.accounting import Plan
from sfumato.privacy.budget import AnyBudget, Budget, BudgetExceeded, NoGuarantee
from sfumato.privacy.curator import Counts, Curator
from sfumato.privacy.events import Block, Event, RawAccess, Relation, SubsampledGaussian
from sfumato.privacy.gradients.batch import NoisyGradient
from sfumato.privacy.interfaces import Progress
from sfumato.privacy.ledger import Ledger, LedgerBusy, LedgerDamaged, RunRefused
from sfumato.privacy.randomness import Draws, Randomness
from sfumato.privacy.records import PrivateRecords, PrivateState
from sfumato.privacy.step import Step

__all__ = [
    "AnyBudget",
    "Block",
    "Budget",
    "BudgetExceeded",
    "Counts",
    "Curator",
    "Draws",
    "Event",
    "Ledger",
    "LedgerBusy",
    "LedgerDamaged",
    "NoGuarantee",
    "NoisyGradient",
    "Plan",
    "PrivateRecords",
    "PrivateState",
    "Progress",
    "Randomness",
    "RawAccess",
    "Relation",
    "RunRefused",
    "Step",
    "SubsampledGaussian",
]
