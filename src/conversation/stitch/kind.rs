//! How a turn stands to its parent.

/// See the rules of [`super`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Root,
    Append,
    Branch,
    Retry,
    Regenerate,
    FanOut,
    Window,
    Resumed,
    Compaction,
    Spawned,
}

impl Kind {
    pub const ALL: [Kind; 10] = [
        Kind::Root,
        Kind::Append,
        Kind::Branch,
        Kind::Retry,
        Kind::Regenerate,
        Kind::FanOut,
        Kind::Window,
        Kind::Resumed,
        Kind::Compaction,
        Kind::Spawned,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Root => "root",
            Kind::Append => "append",
            Kind::Branch => "branch",
            Kind::Retry => "retry",
            Kind::Regenerate => "regenerate",
            Kind::FanOut => "fan_out",
            Kind::Window => "window",
            Kind::Resumed => "resumed",
            Kind::Compaction => "compaction",
            Kind::Spawned => "spawned",
        }
    }

    /// The kind of that name; a kind of a later version counts as a root.
    pub fn of_name(name: &str) -> Kind {
        Self::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or(Kind::Root)
    }

    /// Whether the turn asks for what its parent asked for.
    pub fn repeats(self) -> bool {
        matches!(self, Kind::Retry | Kind::Regenerate | Kind::FanOut)
    }

    /// Whether the turn goes on behind its parent's answer.
    pub fn follows(self) -> bool {
        matches!(self, Kind::Append | Kind::Branch | Kind::Window | Kind::Resumed | Kind::Compaction)
    }

    /// Whether it makes a branch of its conversation.
    pub fn forks(self) -> bool {
        matches!(self, Kind::Branch | Kind::Regenerate | Kind::FanOut | Kind::Spawned)
    }
}
