//! The recorder: what happens to a copy of the traffic, off the path.

pub mod assemble;
