//! Statistics for pass-or-fail sequences: intervals for people, sequential evidence for alarms.
//!
//! Everything here is pure: no clock, no I/O, no global state. Randomness comes from a seed.

pub mod detector;
pub mod dice;
pub mod interval;
pub mod window;

pub use detector::Detector;
pub use dice::Dice;
pub use interval::{Interval, wilson};
pub use window::Window;
