"""What can happen in a training run: past facts in plain numbers, with the place in the user's code.

Nothing here holds a tensor or imports torch. A new event is a class in one of these files, and nothing else:
the record reads and writes every class that there is.
"""

from __future__ import annotations

from typing import Any, Union

from unstuck.events.base import (
    ClassFact as ClassFact,
    DropoutFact as DropoutFact,
    Event as Event,
    GraphFact as GraphFact,
    GroupFact as GroupFact,
    InputFact as InputFact,
    Leak as Leak,
    ModuleFact as ModuleFact,
    OperationFact as OperationFact,
    ParameterFact as ParameterFact,
    Place as Place,
    TensorFact as TensorFact,
    TermFact as TermFact,
    Trial as Trial,
)
from unstuck.events.crash import Crash as Crash
from unstuck.events.data import (
    AnswersFedBack as AnswersFedBack,
    BatchSeen as BatchSeen,
    CopySeen as CopySeen,
    Evaluated as Evaluated,
    GraphsBatched as GraphsBatched,
    InputsCompared as InputsCompared,
    LoaderSeen as LoaderSeen,
    Seeded as Seeded,
    SoftTargetsCompared as SoftTargetsCompared,
    StateLoaded as StateLoaded,
    StatisticsUntouched as StatisticsUntouched,
    TargetsCompared as TargetsCompared,
    TargetsCopied as TargetsCopied,
)
from unstuck.events.loop import (
    Backward as Backward,
    Clip as Clip,
    Forward as Forward,
    GraphsKept as GraphsKept,
    HandStep as HandStep,
    LossCall as LossCall,
    LossInputs as LossInputs,
    ModeChange as ModeChange,
    ModelSeen as ModelSeen,
    NonFinite as NonFinite,
    OptimizerSeen as OptimizerSeen,
    OptimizerStep as OptimizerStep,
    Scored as Scored,
    UntrainedGradients as UntrainedGradients,
    ZeroGrad as ZeroGrad,
)
from unstuck.events.measurements import (
    Activations as Activations,
    AxisGuessed as AxisGuessed,
    EpisodesEnded as EpisodesEnded,
    FrozenMoved as FrozenMoved,
    Gauges as Gauges,
    Histograms as Histograms,
    LayersRan as LayersRan,
    LayersUnused as LayersUnused,
    LoadedLost as LoadedLost,
    LossesBetween as LossesBetween,
    TensorGauges as TensorGauges,
    TensorsNamed as TensorsNamed,
    WeightsWritten as WeightsWritten,
)
from unstuck.events.players import (
    Bootstrapped as Bootstrapped,
    CodeSeen as CodeSeen,
    OutputPulled as OutputPulled,
    PairsMatched as PairsMatched,
    PolicyPulled as PolicyPulled,
    RowsCompared as RowsCompared,
    Spread as Spread,
    SpreadSeen as SpreadSeen,
    TripletsCompared as TripletsCompared,
    Weighting as Weighting,
)
from unstuck.events.preview import (
    BatchShown as BatchShown,
    Drawn as Drawn,
    Filters as Filters,
    FiltersShown as FiltersShown,
    Form as Form,
    Predicted as Predicted,
    PredictionKind as PredictionKind,
    TensorShown as TensorShown,
)
from unstuck.events.run import (
    RECORD_VERSION as RECORD_VERSION,
    Note as Note,
    RunEnded as RunEnded,
    RunStarted as RunStarted,
    RunStatus as RunStatus,
)
from unstuck.events.schedules import (
    GradientsReduced as GradientsReduced,
    RateAsked as RateAsked,
    ScalerUpdate as ScalerUpdate,
    ScheduleEnded as ScheduleEnded,
    SchedulerSeen as SchedulerSeen,
    SchedulerStep as SchedulerStep,
    StepSkipped as StepSkipped,
    Unscale as Unscale,
)
from unstuck.events.setup import Setup as Setup
from unstuck.events.tasks import (
    ColumnsMatched as ColumnsMatched,
    Cover as Cover,
    CoverScored as CoverScored,
    GradientRerouted as GradientRerouted,
    KeysHidden as KeysHidden,
    MaskIndexed as MaskIndexed,
    MessagesReturned as MessagesReturned,
    Pairing as Pairing,
    PartnersSeen as PartnersSeen,
    StateDetached as StateDetached,
    TargetsPlaced as TargetsPlaced,
    WeightsLeaked as WeightsLeaked,
)

EVENTS: tuple[type[Event], ...] = tuple(Event.__subclasses__())
"""Every kind of event."""
AnyEvent: Any = Union[EVENTS]  # noqa: UP007 - built from the classes
