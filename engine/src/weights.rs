//! Model files as named tensors that stay where they are: memory-mapped and quantised, expanded only on use.
//!
//! Tensor names are those of the Hugging Face Llama layout whatever the file format; `gguf` renames on reading.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::error::Error;

pub mod arch;
pub mod dequant;
pub mod gguf;
mod map;
pub mod reference;
pub mod safetensors;

pub use dequant::Dtype;

/// Bytes of a model file, shared by all its tensors.
#[derive(Clone)]
pub enum Source {
    /// A read-only memory map.
    Mapped(Arc<map::Map>),
    /// Bytes made in memory.
    Owned(Arc<[u8]>),
}

impl Source {
    /// Maps a file read-only.
    pub fn open(path: &Path) -> Result<Source, Error> {
        Ok(Source::Mapped(Arc::new(map::Map::open(path)?)))
    }

    /// The whole content.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Source::Mapped(map) => map.bytes(),
            Source::Owned(bytes) => bytes,
        }
    }
}

/// One matrix or vector. Row-major: `rows` rows of `cols` elements, `cols` the fastest axis.
#[derive(Clone)]
pub struct Tensor {
    pub dtype: Dtype,
    pub rows: usize,
    pub cols: usize,
    source: Source,
    start: usize,
}

/// What a model file holds: tensors by name.
#[derive(Clone, Default)]
pub struct Weights {
    tensors: HashMap<String, Tensor>,
}

impl Tensor {
    /// A view of `source` at `start`; refuses a range outside it or a row length the type cannot hold.
    pub fn new(
        name: &str,
        dtype: Dtype,
        shape: (usize, usize),
        source: Source,
        start: usize,
    ) -> Result<Tensor, Error> {
        let (rows, cols) = shape;
        let bad = |reason: String| Error::malformed(format!("tensor {name:?}"), reason);
        let row = dtype
            .row_bytes(cols)
            .ok_or_else(|| bad(format!("rows of {cols} elements do not fit blocks of {dtype:?}")))?;
        let end = row.checked_mul(rows).and_then(|n| n.checked_add(start));
        match end {
            Some(end) if end <= source.bytes().len() => Ok(Tensor { dtype, rows, cols, source, start }),
            _ => Err(bad(format!(
                "{rows} x {cols} {dtype:?} at byte {start} reaches past the end of the file"
            ))),
        }
    }

    /// Stored bytes of one row.
    pub fn row(&self, row: usize) -> &[u8] {
        let bytes = self.row_bytes();
        let start = self.start + row * bytes;
        &self.source.bytes()[start..start + bytes]
    }

    /// Stored bytes of one row, in number.
    pub fn row_bytes(&self) -> usize {
        // `new` refused every tensor for which this is None.
        self.dtype.row_bytes(self.cols).unwrap_or(0)
    }

    /// One row as f32 into `out`, which has `cols` elements.
    pub fn row_f32(&self, row: usize, out: &mut [f32]) {
        dequant::row(self.dtype, self.row(row), out);
    }

    /// The whole tensor as f32, row after row. Meant for norms and other small vectors.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        for (row, out) in out.chunks_mut(self.cols.max(1)).enumerate() {
            self.row_f32(row, out);
        }
        out
    }
}

impl Weights {
    /// Adds a tensor; a name that is there already is an error.
    pub fn insert(&mut self, name: String, tensor: Tensor) -> Result<(), Error> {
        if self.tensors.contains_key(&name) {
            return Err(Error::malformed("model file", format!("tensor {name:?} appears twice")));
        }
        self.tensors.insert(name, tensor);
        Ok(())
    }

    /// Whether a tensor of that name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// A matrix of exactly `rows` x `cols`.
    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Tensor, Error> {
        let tensor = self.tensors.get(name).ok_or_else(|| {
            Error::malformed("model file", format!("tensor {name:?} is missing; the file is incomplete"))
        })?;
        if (tensor.rows, tensor.cols) != (rows, cols) {
            return Err(Error::malformed(
                format!("tensor {name:?}"),
                format!("is {} x {}, the configuration asks for {rows} x {cols}", tensor.rows, tensor.cols),
            ));
        }
        Ok(tensor.clone())
    }

    /// A vector of exactly `len` elements as f32.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, Error> {
        Ok(self.matrix(name, 1, len)?.to_f32())
    }
}
