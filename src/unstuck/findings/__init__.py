"""What the product says: findings, diagnoses, results of experiments. Plain data for every report."""

from unstuck.findings.diagnosis import (
    Diagnosis as Diagnosis,
    merge as merge,
    one_per_cause as one_per_cause,
    rank as rank,
)
from unstuck.findings.finding import (
    FORMAT_VERSION as FORMAT_VERSION,
    SHOWN_BY as SHOWN_BY,
    Confidence as Confidence,
    Edit as Edit,
    Evidence as Evidence,
    Finding as Finding,
    Fix as Fix,
    Severity as Severity,
    Subject as Subject,
    Variant as Variant,
    Verify as Verify,
    Witness as Witness,
)
