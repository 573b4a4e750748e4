# Made by tools/front_doors.py from the `__all__` of each file.
# ruff: noqa: I001
# fmt: off
from collections.abc import Mapping, Sequence

from groupwise.advantages import (
    AgainstSubscore as AgainstSubscore, Bounded as Bounded, EachStandardised as EachStandardised,
    Lagrangian as Lagrangian, Standardised as Standardised, Whitened as Whitened, WhitenedTokens as WhitenedTokens,
    centred as centred, every_token as every_token
)
from groupwise.api import (
    Run as Run, evaluate as evaluate, export as export, list_methods as list_methods, load_method as load_method,
    resume as resume, sample as sample, train as train
)
from groupwise.config import (
    Agent as Agent, Cluster as Cluster, Columns as Columns, Evaluate as Evaluate, ExtraTask as ExtraTask,
    Machine as Machine, Permissions as Permissions, Recipe as Recipe, Save as Save, WarmStart as WarmStart
)
from groupwise.core import (
    BadData as BadData, Diverged as Diverged, GroupwiseError as GroupwiseError,
    MissingRequirement as MissingRequirement, Usage as Usage
)
from groupwise.data import (
    Advantage as Advantage, Aggregate as Aggregate, Batch as Batch, Credit as Credit, Curriculum as Curriculum,
    Draw as Draw, Environment as Environment, Filter as Filter, Finish as Finish, Mask as Mask, Outcome as Outcome,
    Penalty as Penalty, Prompt as Prompt, Ratio as Ratio, Rollout as Rollout, Sample as Sample, Sampling as Sampling,
    Shaping as Shaping, Strategy as Strategy, Surrogate as Surrogate, Task as Task, TaskSettings as TaskSettings,
    Verdict as Verdict, VerifierSettings as VerifierSettings, Weight as Weight, advantage as advantage,
    aggregate as aggregate, credit as credit, filter as filter, mask as mask, penalty as penalty, ratio as ratio,
    shaping as shaping, strategy as strategy, surrogate as surrogate, weight as weight
)
from groupwise.engines import (
    Native as Native, Served as Served, Speculative as Speculative, Vllm as Vllm
)
from groupwise.learner import (
    AdamW as AdamW, ClippedValueLoss as ClippedValueLoss, EMA as EMA, FromDirectory as FromDirectory,
    InitialPolicy as InitialPolicy, RouterBalance as RouterBalance, SamplingPolicy as SamplingPolicy,
    SquaredValueLoss as SquaredValueLoss, ValueModel as ValueModel
)
from groupwise.methods import (
    ActionSuccess as ActionSuccess, AddBrierScore as AddBrierScore, AddFinishedBonus as AddFinishedBonus,
    AddLengthBudgetScore as AddLengthBudgetScore, AddSubscoreIfCorrect as AddSubscoreIfCorrect,
    AddTrustedSubscore as AddTrustedSubscore, AddWeightedMean as AddWeightedMean,
    AlternatingRoleMask as AlternatingRoleMask, AnswerAndScheduleStrategy as AnswerAndScheduleStrategy,
    BestAnswerRefinement as BestAnswerRefinement, BinaryClassification as BinaryClassification,
    BradleyTerry as BradleyTerry, BranchingTree as BranchingTree, BrevityWhenSolved as BrevityWhenSolved,
    BundleScoreQuantiles as BundleScoreQuantiles, ChecksReward as ChecksReward,
    ClaimPressureStrategy as ClaimPressureStrategy, ConsecutiveGroupsAdvantage as ConsecutiveGroupsAdvantage,
    ConsistencyBonus as ConsistencyBonus, CorrectPrefixCuesStrategy as CorrectPrefixCuesStrategy,
    CurvedRamp as CurvedRamp, CyclicValues as CyclicValues, DebiasedReward as DebiasedReward,
    DelayedStart as DelayedStart, Delegating as Delegating, DepthPruning as DepthPruning,
    DiscriminativeLoss as DiscriminativeLoss, DistinctFromOtherOutcomeFilter as DistinctFromOtherOutcomeFilter,
    DraftAndRefine as DraftAndRefine, EarlyExitReward as EarlyExitReward, EarlyExits as EarlyExits,
    EarlyStoppingTurns as EarlyStoppingTurns, EarlyTokenCredit as EarlyTokenCredit, ElasticScale as ElasticScale,
    EqualisedSteps as EqualisedSteps, ExplainGoldAnswer as ExplainGoldAnswer, ExponentialDecay as ExponentialDecay,
    FailureBuffer as FailureBuffer, FalseRejectRate as FalseRejectRate, FeedbackTree as FeedbackTree,
    FormatLength as FormatLength, ForwardCorrection as ForwardCorrection, FreshnessReplay as FreshnessReplay,
    GAE as GAE, GammaShapedWeight as GammaShapedWeight, GreedyAnswerStrategy as GreedyAnswerStrategy,
    GroupPreference as GroupPreference, HigherScore as HigherScore, HintAtLevelStrategy as HintAtLevelStrategy,
    HintLevelCurriculum as HintLevelCurriculum, HintWriter as HintWriter, IdentityPreference as IdentityPreference,
    ImplicitPairLoss as ImplicitPairLoss, InsideClip as InsideClip, InverseRemaining as InverseRemaining,
    KLFromOld as KLFromOld, KLHinge as KLHinge, Knapsack as Knapsack, LabelContrast as LabelContrast,
    LagrangeMultipliers as LagrangeMultipliers, LengthScaledAggregate as LengthScaledAggregate,
    LinearRamp as LinearRamp, LogClip as LogClip, LogRatioAdvantageFit as LogRatioAdvantageFit,
    LogRatioZScoreFit as LogRatioZScoreFit, LookaheadTree as LookaheadTree, MarginPreference as MarginPreference,
    MetaPredictions as MetaPredictions, Method as Method, MismatchRejection as MismatchRejection,
    MixedClip as MixedClip, NoiseWindowStrategy as NoiseWindowStrategy, NormalisedWeight as NormalisedWeight,
    OddsAdvantage as OddsAdvantage, OddsRatio as OddsRatio, OffPolicySequenceMask as OffPolicySequenceMask,
    OneNoisyStep as OneNoisyStep, OptimalityProbability as OptimalityProbability, OverlongPenalty as OverlongPenalty,
    PairwiseWinRatesStrategy as PairwiseWinRatesStrategy, PenaltyOfRole as PenaltyOfRole,
    PiecewiseConstant as PiecewiseConstant, PilotAllocation as PilotAllocation,
    PolicyWrittenHints as PolicyWrittenHints, PositiveOnly as PositiveOnly,
    PrefixContinuationStrategy as PrefixContinuationStrategy, PrefixValueDifference as PrefixValueDifference,
    PromptBundleRiskAdvantage as PromptBundleRiskAdvantage, PromptSurveyCurriculum as PromptSurveyCurriculum,
    ProposalCollectingStrategy as ProposalCollectingStrategy, ProposedProblemCurriculum as ProposedProblemCurriculum,
    ProspectValue as ProspectValue, ReasoningStepReturns as ReasoningStepReturns,
    RecentMeanScoresCurriculum as RecentMeanScoresCurriculum, RecoveryPrompts as RecoveryPrompts,
    ReplayStoredAnswer as ReplayStoredAnswer, ReturnsToGo as ReturnsToGo, RewardLevels as RewardLevels,
    SampleRoleMask as SampleRoleMask, SemanticEntropyScaling as SemanticEntropyScaling,
    SequenceKLInReward as SequenceKLInReward, SetWrongAnswerReward as SetWrongAnswerReward,
    ShortAnswerWeights as ShortAnswerWeights, SiblingViewStrategy as SiblingViewStrategy, SoftGate as SoftGate,
    Staircase as Staircase, StateValue as StateValue, SubscoreScaledAggregate as SubscoreScaledAggregate,
    SuccessTrackerCurriculum as SuccessTrackerCurriculum, SumProposalParser as SumProposalParser,
    TeacherCertainty as TeacherCertainty, TeacherGap as TeacherGap, ThompsonSampling as ThompsonSampling,
    TrackedBaselineStrategy as TrackedBaselineStrategy, TruncatedAnswerReward as TruncatedAnswerReward,
    TurnGroups as TurnGroups, Unlikeliness as Unlikeliness, VelocityPenalty as VelocityPenalty, ViewMask as ViewMask,
    VirtualBestAnswer as VirtualBestAnswer, WithSolutionAnchor as WithSolutionAnchor, asym_grpo as asym_grpo,
    bradley_terry as bradley_terry, branch_grpo as branch_grpo, bubblespec as bubblespec, cispo as cispo,
    co_grpo as co_grpo, ctpo as ctpo, dagrpo as dagrpo, dapo as dapo, dhpo as dhpo, diffusion_nft as diffusion_nft,
    dispo as dispo, dpo as dpo, dr_grpo as dr_grpo, drpo as drpo, etr as etr, expo as expo, fgrpo as fgrpo,
    fission_grpo as fission_grpo, flow_grpo as flow_grpo, format_length as format_length,
    freshness_per as freshness_per, g2rpo as g2rpo, gdpo as gdpo, gdpo_sr as gdpo_sr, gigpo as gigpo, gmpo as gmpo,
    graph_grpo as graph_grpo, grpo as grpo, grpo_care as grpo_care, grpo_guard as grpo_guard,
    grpo_lambda as grpo_lambda, grpo_process as grpo_process, gspo as gspo, gspo_token as gspo_token,
    guide_grpo as guide_grpo, hill as hill, holder_po as holder_po, hora as hora, igrpo as igrpo, ipo as ipo,
    knapsack_rl as knapsack_rl, kto as kto, latr as latr, leave_one_out as leave_one_out, luspo as luspo,
    m_grpo as m_grpo, masa as masa, mdpo as mdpo, mixed_mean as mixed_mean,
    multi_objective_grpo as multi_objective_grpo, murphy as murphy, ngrpo as ngrpo, noisy_verifier as noisy_verifier,
    on_policy_distillation as on_policy_distillation, orpo as orpo, parrot as parrot, popo as popo,
    posterior_grpo as posterior_grpo, ppo as ppo, pref_grpo as pref_grpo, prefix_ratio as prefix_ratio, real as real,
    refine as refine, reg_grpo as reg_grpo, reinforce as reinforce, reinforce_pp as reinforce_pp,
    reinforce_pp_baseline as reinforce_pp_baseline, remax as remax, rest_rl as rest_rl, rgr_grpo as rgr_grpo,
    riskpo as riskpo, rloo as rloo, role_mean as role_mean, s_grpo as s_grpo, sage_grpo_flow as sage_grpo_flow,
    sage_hint as sage_hint, sapo as sapo, scaf_grpo as scaf_grpo, seed_grpo as seed_grpo,
    selective_rollout as selective_rollout, sft as sft, simpo as simpo, spo as spo, srpo as srpo, sspo as sspo,
    syn_grpo as syn_grpo, tempo as tempo, ton as ton, train_inference_mismatch as train_inference_mismatch,
    train_long_think_short as train_long_think_short, trpa as trpa, trust_grpo as trust_grpo,
    trustgeogen as trustgeogen, unlikeliness as unlikeliness, vade as vade, veripo as veripo, vespo as vespo
)
from groupwise.models import (
    CoefficientsPreservingNoise as CoefficientsPreservingNoise, DanceGrpoNoise as DanceGrpoNoise,
    FlowGrpoNoise as FlowGrpoNoise, IntegratedNoise as IntegratedNoise, Lora as Lora
)
from groupwise.objective import (
    AdaptiveKL as AdaptiveKL, AggregateReplacingWeight as AggregateReplacingWeight,
    CentredStepRatio as CentredStepRatio, Clip as Clip, ClippedWeight as ClippedWeight, Distillation as Distillation,
    DualClip as DualClip, EntropyBonus as EntropyBonus, GatedSurrogate as GatedSurrogate,
    GeometricMaskedImportance as GeometricMaskedImportance, InverseStepLengthWeight as InverseStepLengthWeight,
    KL as KL, MaskedImportance as MaskedImportance, MaxNormalisedEntropyScale as MaxNormalisedEntropyScale,
    Objective as Objective, PairwisePreference as PairwisePreference, PowerMeanRatio as PowerMeanRatio,
    ScaledClip as ScaledClip, SentenceEntropyClipScale as SentenceEntropyClipScale, SentenceRatio as SentenceRatio,
    SequenceMaskedImportance as SequenceMaskedImportance, SequenceTruncatedImportance as SequenceTruncatedImportance,
    ShapedLikelihood as ShapedLikelihood, StepKLPenalty as StepKLPenalty, TruncatedImportance as TruncatedImportance,
    UnclippedSurrogate as UnclippedSurrogate, budget_mean as budget_mean, complete as complete,
    episode_mean as episode_mean, group_mean as group_mean, group_token_mean as group_token_mean,
    log_likelihood as log_likelihood, nothing as nothing, pair_mean as pair_mean, policy_gradient as policy_gradient,
    positive_advantage as positive_advantage, sequence_mean as sequence_mean, sequence_product as sequence_product,
    sequence_ratio as sequence_ratio, sequence_ratio_per_token as sequence_ratio_per_token,
    sequence_sum as sequence_sum, token_mean as token_mean, token_ratio as token_ratio, turn_mean as turn_mean,
    unscaled as unscaled, written_tokens as written_tokens
)
from groupwise.rewards import (
    AddSubscore as AddSubscore, AddWellFormed as AddWellFormed, Correctness as Correctness, Score as Score,
    SubscoreReward as SubscoreReward, TextureWeightedReward as TextureWeightedReward, correct_only as correct_only,
    everything as everything, mixed_groups as mixed_groups, mixed_outcomes as mixed_outcomes,
    mixed_scores as mixed_scores, not_all_correct as not_all_correct
)
from groupwise.rollout import (
    AgentEpisodes as AgentEpisodes, ForwardProcess as ForwardProcess, HintEscalation as HintEscalation,
    HintScaffold as HintScaffold, Independent as Independent, RowHints as RowHints, Shuffled as Shuffled,
    ShuffledRows as ShuffledRows, Stored as Stored, Turns as Turns
)
from groupwise.tasks import (
    Beads as Beads, BigSums as BigSums, Calculator as Calculator, Coin as Coin, DataRows as DataRows,
    Deduction as Deduction, DelegatedSums as DelegatedSums, Demonstrations as Demonstrations, Edges as Edges,
    Glyphs as Glyphs, HintedSums as HintedSums, Largest as Largest, MixedSums as MixedSums, Programs as Programs,
    ProposedSums as ProposedSums, PublishedSet as PublishedSet, Quilts as Quilts, ReasoningGym as ReasoningGym,
    Rings as Rings, Shapes as Shapes, TinyCountdown as TinyCountdown, WordySums as WordySums
)
from groupwise.verifiers import (
    BeadString as BeadString, CalculatorAnswer as CalculatorAnswer, Code as Code, Combined as Combined,
    Countdown as Countdown, EnvironmentVerdictVerifier as EnvironmentVerdictVerifier, Exact as Exact,
    Figures as Figures, Function as Function, GlyphPatches as GlyphPatches, GymScore as GymScore,
    HackableScore as HackableScore, JsonSchema as JsonSchema, Judge as Judge, LastNumber as LastNumber, Math as Math,
    MathDapo as MathDapo, MathDrGrpo as MathDrGrpo, MathVerify as MathVerify, NoisyVerdicts as NoisyVerdicts,
    OptionChoice as OptionChoice, ProcessRewardModel as ProcessRewardModel, ProofSteps as ProofSteps,
    QuiltPatches as QuiltPatches, Regex as Regex, RewardModel as RewardModel, RingPointDirection as RingPointDirection,
    SpanningGraph as SpanningGraph, SumSteps as SumSteps, SumWithProposal as SumWithProposal, TagFormat as TagFormat,
    Text as Text
)

parts: Mapping[str, Sequence[str]]
__version__: str
