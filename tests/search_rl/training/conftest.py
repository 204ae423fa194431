"""verl chooses its platform when it is first imported: in these tests it is the CPU."""

from __future__ import annotations

import os

os.environ["VERL_PLATFORM"] = "cpu"
