//! [`Preset`]: where known model APIs report the tokens of a request.

use serde::{Deserialize, Serialize};

use super::{
    formula::{CostFormula, CostTerm, Factor, TermAbsence},
    path::{JsonPath, PathSet},
};

/// The API of a model, whose responses report their tokens at known places.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// `OpenAI`: chat completions, responses and embeddings. A stream of chat completions reports
    /// tokens if the request has `stream_options: {include_usage: true}`.
    Openai,
    /// Anthropic: messages. In a stream, `message_start` has the input and `message_delta` the
    /// output.
    Anthropic,
    /// Gemini: `generateContent` and `streamGenerateContent`, as server-sent events or as an array.
    Gemini,
    /// Amazon Bedrock: `converse`, and `converse-stream` if a proxy makes server-sent events of it.
    /// The binary event stream of AWS is not read.
    Bedrock,
    /// Ollama: `generate`, `chat` and `embed`; streams are lines of JSON.
    Ollama,
}

/// What a number of a response counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PresetRole {
    /// Tokens of the request.
    Input,
    /// Tokens of the response.
    Output,
    /// Both.
    Total,
}

/// A number of a response: its role, and the paths of which the first that a response has counts.
pub(super) struct PresetTerm {
    role: PresetRole,
    absence: TermAbsence,
    pub(super) paths: &'static [&'static str],
}

const fn input(paths: &'static [&'static str]) -> PresetTerm {
    PresetTerm { role: PresetRole::Input, absence: TermAbsence::Nothing, paths }
}

const fn output(paths: &'static [&'static str]) -> PresetTerm {
    PresetTerm { role: PresetRole::Output, absence: TermAbsence::Nothing, paths }
}

const fn total(paths: &'static [&'static str]) -> PresetTerm {
    PresetTerm { role: PresetRole::Total, absence: TermAbsence::Nothing, paths }
}

/// The output that a stream reports at its end, after a first number that is not final: without it,
/// the cost is not known.
const fn final_output(paths: &'static [&'static str]) -> PresetTerm {
    PresetTerm { role: PresetRole::Output, absence: TermAbsence::Unknown, paths }
}

/// The names of chat completions, then those of responses: in JSON, and in the event
/// `response.completed`.
const OPENAI: &[PresetTerm] = &[
    total(&["usage.total_tokens", "response.usage.total_tokens"]),
    input(&["usage.prompt_tokens", "usage.input_tokens", "response.usage.input_tokens"]),
    output(&["usage.completion_tokens", "usage.output_tokens", "response.usage.output_tokens"]),
];

/// `input_tokens` has no cached tokens. `message_delta` counts the whole output; `message_start`
/// has its first token alone.
const ANTHROPIC: &[PresetTerm] = &[
    input(&["usage.input_tokens", "message.usage.input_tokens"]),
    input(&["usage.cache_creation_input_tokens", "message.usage.cache_creation_input_tokens"]),
    input(&["usage.cache_read_input_tokens", "message.usage.cache_read_input_tokens"]),
    final_output(&["usage.output_tokens"]),
];

/// Each element of an array, or each event, has the tokens so far.
const GEMINI: &[PresetTerm] = &[
    total(&["usageMetadata.totalTokenCount", "*.usageMetadata.totalTokenCount"]),
    input(&["usageMetadata.promptTokenCount", "*.usageMetadata.promptTokenCount"]),
    input(&["usageMetadata.toolUsePromptTokenCount", "*.usageMetadata.toolUsePromptTokenCount"]),
    output(&["usageMetadata.candidatesTokenCount", "*.usageMetadata.candidatesTokenCount"]),
    output(&["usageMetadata.thoughtsTokenCount", "*.usageMetadata.thoughtsTokenCount"]),
];

/// The last event of a stream is `metadata`.
const BEDROCK: &[PresetTerm] = &[
    total(&["usage.totalTokens", "metadata.usage.totalTokens"]),
    input(&["usage.inputTokens", "metadata.usage.inputTokens"]),
    input(&["usage.cacheReadInputTokens", "metadata.usage.cacheReadInputTokens"]),
    input(&["usage.cacheWriteInputTokens", "metadata.usage.cacheWriteInputTokens"]),
    output(&["usage.outputTokens", "metadata.usage.outputTokens"]),
];

/// The last line of a stream has them.
const OLLAMA: &[PresetTerm] = &[input(&["prompt_eval_count"]), output(&["eval_count"])];

impl Preset {
    /// All presets.
    pub const ALL: [Self; 5] =
        [Self::Openai, Self::Anthropic, Self::Gemini, Self::Bedrock, Self::Ollama];

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Bedrock => "bedrock",
            Self::Ollama => "ollama",
        }
    }

    pub(super) fn terms(self) -> &'static [PresetTerm] {
        match self {
            Self::Openai => OPENAI,
            Self::Anthropic => ANTHROPIC,
            Self::Gemini => GEMINI,
            Self::Bedrock => BEDROCK,
            Self::Ollama => OLLAMA,
        }
    }

    /// The members of a request that bound the tokens of one choice of its response; the largest
    /// counts.
    pub fn estimate(self) -> Vec<JsonPath> {
        let paths: &[&str] = match self {
            Self::Openai => &["max_completion_tokens", "max_tokens", "max_output_tokens"],
            Self::Anthropic => &["max_tokens"],
            // Google's parsers read both spellings of each name.
            Self::Gemini => &[
                "generationConfig.maxOutputTokens",
                "generationConfig.max_output_tokens",
                "generation_config.maxOutputTokens",
                "generation_config.max_output_tokens",
            ],
            Self::Bedrock => &["inferenceConfig.maxTokens"],
            Self::Ollama => &["options.num_predict"],
        };
        paths.iter().filter_map(|path| path.parse().ok()).collect()
    }

    /// The members of a request that say how many choices are made for its response; the largest
    /// counts. Each choice has the tokens that [`Self::estimate`] bounds.
    pub fn choices(self) -> Vec<JsonPath> {
        let paths: &[&str] = match self {
            // Completions are charged for `best_of` choices, of which `n` are returned.
            Self::Openai => &["n", "best_of"],
            Self::Gemini => &[
                "generationConfig.candidateCount",
                "generationConfig.candidate_count",
                "generation_config.candidateCount",
                "generation_config.candidate_count",
            ],
            Self::Anthropic | Self::Bedrock | Self::Ollama => &[],
        };
        paths.iter().filter_map(|path| path.parse().ok()).collect()
    }

    /// The paths of its numbers, and what they cost together. Without `weights`, that is the total,
    /// or else the sum of input and output; with `weights`, the sum of both, each times its factor.
    pub fn formula(self, weights: Option<(Factor, Factor)>) -> (Option<PathSet>, CostFormula) {
        let (mut paths, mut sums) = (Vec::new(), [Vec::new(), Vec::new()]);
        let (input, output) = weights.unwrap_or((Factor::ONE, Factor::ONE));
        for term in self.terms() {
            let (sum, factor) = match term.role {
                PresetRole::Total if weights.is_some() => continue,
                PresetRole::Total => (0, Factor::ONE),
                PresetRole::Input => (1, input),
                PresetRole::Output => (1, output),
            };
            let first = paths.len();
            paths.extend(term.paths.iter().filter_map(|path| path.parse().ok()));
            sums[sum].push(CostTerm {
                alternatives: (first..paths.len()).collect(),
                factor,
                absence: term.absence,
            });
        }
        let sums = sums.into_iter().filter(|terms| !terms.is_empty()).collect();
        (PathSet::new(paths), CostFormula { sums })
    }
}
