//! Bodies: a bounded copy taken while bytes stream by, and the budget all copies share.

pub mod budget;
pub mod kept;
pub mod replay;
pub mod unread;

/// Any error, boxed as it travels between layers.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body that hands on several received pieces as one frame, and remembers where they were joined.
pub trait Edges {
    /// Lengths of the pieces of the latest data frame; empty when it was received as it is.
    fn edges(&self) -> &[u32];
    /// Lets go of whatever the body comes from, now: nobody wants the rest.
    fn abandon(&mut self) {}
}
