//! The interfaces that turns of a conversation come through.

/// A kind of request that a model answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`, Anthropic's
    Messages,
    /// `/v1/completions`
    Completions,
    /// `/generate`, SGLang's own
    Generate,
}

impl Api {
    pub const ALL: [Api; 5] = [Api::Chat, Api::Responses, Api::Messages, Api::Completions, Api::Generate];

    /// The interface at a path; `None` for paths that are no turns, such as embeddings.
    pub fn of_path(path: &str) -> Option<Api> {
        Self::ALL.into_iter().find(|api| api.path() == path)
    }

    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Responses => "/v1/responses",
            Api::Messages => "/v1/messages",
            Api::Completions => "/v1/completions",
            Api::Generate => "/generate",
        }
    }
}
