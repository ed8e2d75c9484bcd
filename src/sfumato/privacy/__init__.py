"""The auditable core: budget, events, ledger, accounting, randomness, sampling, gradients and the Curator."""

from sfumato.privacy.budget import AnyBudget, Budget, BudgetExceeded, NoGuarantee
from sfumato.privacy.curator import Counts, Curator, Progress, Step
from sfumato.privacy.events import Block, Event, RawAccess, SubsampledGaussian
from sfumato.privacy.gradients.noisy_gradient import NoisyGradient
from sfumato.privacy.ledger import Ledger, LedgerBusy, LedgerDamaged
from sfumato.privacy.plan import Plan
from sfumato.privacy.randomness import Draws, Randomness
from sfumato.privacy.records import PrivateRecords
from sfumato.privacy.state import PrivateState

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
    "Step",
    "SubsampledGaussian",
]
