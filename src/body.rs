//! Bodies: a bounded copy taken while bytes stream by, and the budget all copies share.

pub mod budget;
pub mod digest;
pub mod kept;
pub mod pieces;
pub mod replay;
pub mod unread;

use digest::Digest;

/// Any error, boxed as it travels between layers.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body that hands on several received pieces as one frame, and remembers where they were joined.
pub trait Edges {
    /// Lengths of the pieces of the latest data frame; empty when it was received as it is.
    fn edges(&self) -> &[u32];
    /// From here on takes a digest of what is received.
    fn watch(&mut self) {}
    /// That digest; `None` where nobody asked for it, or nothing is received.
    fn received(&self) -> Option<Digest> {
        None
    }
    /// Lets go of whatever the body comes from, now: nobody wants the rest.
    fn abandon(&mut self) {}
}
