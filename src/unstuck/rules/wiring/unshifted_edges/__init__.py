"""M30: the edges of all graphs of a batch point into its first graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import GraphsBatched
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.rule import Rule

if TYPE_CHECKING:
    from unstuck.record import Record

rule = Rule(
    code="M30",
    name="unshifted-edges",
    title="graphs are put into one batch, and their edges keep the node numbers of the single graph",
    severity=Severity.ERROR,
    explains=("R08", "P19", "P21", "R03"),
    needs=(GraphsBatched,),
)

FEWEST = 3
"""Batches."""
FEW = 0.5
"""The share of the graphs that may have edges where all edges lie within the size of one graph."""

OFTEN = 0.2
"""Of the edges join the same nodes as another one: those of several graphs."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """By the numbers in the edges, in every batch that was looked at."""
    for model in dict.fromkeys(event.model for event in record.of(GraphsBatched)):
        seen = [event for event in record.of(GraphsBatched) if event.model == model]
        wrong = [event for event in seen if _is_unshifted(event)]
        if len(wrong) < FEWEST or len(wrong) < len(seen):
            continue
        first = wrong[0]
        yield rule.finding(
            f"All {first.edges:,} edges in `{first.input}` of {model} are between nodes 0 and {first.highest}, of "
            f"{first.nodes:,} nodes in {first.graphs} graphs: {first.graphs - first.with_edges} of the graphs have no "
            "edge.",
            cause="Nodes of a batch are numbered through, from the first graph to the last. Edges that keep the "
            "numbers of their own graph all point into the first ones: these get the messages of every graph, and the "
            "others none.",
            fix="Add to the edges of each graph the number of nodes that come before it: "
            "`edges.append(edge_index + offset)`, then `offset += len(nodes)`.",
            subject=Subject("model", model),
            place=first.place,
            evidence=[
                Evidence("highest node in an edge", first.highest),
                Evidence("nodes", first.nodes),
                Evidence("nodes of the largest graph", first.largest),
                Evidence("graphs with edges", f"{first.with_edges} of {first.graphs}"),
                Evidence("batches looked at", len(seen)),
            ],
        )


def _is_unshifted(event: GraphsBatched) -> bool:
    """Do the edges of several graphs lie on top of each other? Edges between groups, and one template for all graphs,
    are each there once."""
    in_the_first = event.highest < event.largest and event.with_edges <= FEW * event.graphs
    return in_the_first and event.highest + 1 != event.graphs and event.repeated >= OFTEN * event.edges
