"""``python -m sfumato``, which is also how ``torchrun -m sfumato`` starts it."""

from sfumato.cli.main import main

main()
