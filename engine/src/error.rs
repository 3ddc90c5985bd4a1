//! The one error type of the crate. Each variant says what failed, where, and how to mend it.

/// Everything that can go wrong between a request and its answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// All slots work and the waiting line is full; nothing was queued.
    #[error(
        "the engine is busy: {queue} requests are waiting already; try again later or raise the queue length"
    )]
    Busy { queue: usize },
    /// The engine is shutting down.
    #[error("the engine is stopping and takes no new requests")]
    Stopping,
    /// No model of that name was added.
    #[error("no model named {name:?} is loaded; loaded are: {loaded}")]
    UnknownModel { name: String, loaded: String },
    /// The prompt does not fit the model.
    #[error(
        "the prompt has at least {prompt} tokens but the model's context holds {context}; shorten the prompt"
    )]
    TooLong { prompt: usize, context: usize },
    /// A request field has a value the engine cannot honour.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// A file could not be opened or read.
    #[error("cannot read {path}: {reason}")]
    Read { path: String, reason: String },
    /// A file was read but its bytes do not add up.
    #[error("malformed {what}: {reason}")]
    Malformed { what: String, reason: String },
    /// A well-formed input this engine has no code for. Never silently replaced by something else.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The model's chat template refused the messages or is itself broken.
    #[error("chat template: {0}")]
    Template(String),
    /// Text could not be turned into tokens.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// A key-value cache could not grow.
    #[error("out of memory: could not reserve {bytes} bytes for {what}")]
    Memory { what: &'static str, bytes: usize },
    /// A fault inside the engine; the request failed, the engine goes on.
    #[error("internal engine fault: {0}")]
    Internal(String),
}

impl Error {
    /// A file or byte string that does not follow its format.
    pub(crate) fn malformed(what: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Malformed { what: what.into(), reason: reason.into() }
    }
}
