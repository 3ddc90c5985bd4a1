//! The vocabulary of the sparse core: what an operation is asked to do, apart from who computes it.

use std::num::NonZeroUsize;

/// How many positions a layer with an indexer may attend. Layers without one attend everything they can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TopK {
    /// Everything: no scoring, no selection.
    #[default]
    All,
    /// The given number of best-scored positions.
    Limit(NonZeroUsize),
}

/// Which rows each query row (or each query row and key group) attends.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'a> {
    /// Physical rows; -1 marks an unused place and is passed over. A row named twice counts twice.
    pub slots: &'a [i64],
    /// Ranges of `slots`, `[row]`, or `[row][group]` where `per_group`.
    pub spans: &'a [(usize, usize)],
    pub per_group: bool,
}

/// One call of sparse attention.
#[derive(Debug, Clone, Copy)]
pub struct Attend<'a> {
    /// Queries `[row][head][key_dim]`; head h reads key group `h / (heads / groups)`.
    pub queries: &'a [f32],
    pub heads: usize,
    pub scale: f32,
    /// A logit per head that joins the denominator and adds no value.
    pub sink: Option<&'a [f32]>,
    pub selection: Selection<'a>,
}

/// One call of the indexer: `logits[t, s] = sum over h of weights[t, h] relu(q[t, h] . k[s])`.
#[derive(Debug, Clone, Copy)]
pub struct IndexQuery<'a> {
    /// `[heads][dim]` of one row.
    pub query: &'a [f32],
    /// `[heads]`, signed, with every constant factor inside.
    pub weights: &'a [f32],
}

/// How a selection came about, so that one row can explain itself.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TopkStats {
    /// Logits that were NaN; such places are never selected.
    pub nan: usize,
    /// Places that share the lowest selected value but were left out.
    pub ties_left_out: usize,
}
