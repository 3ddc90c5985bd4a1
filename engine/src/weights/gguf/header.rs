//! Parsing of the header: typed values, tensor table, alignment.

use std::collections::HashMap;

use super::{Value, bad};
use crate::error::Error;
use crate::weights::Dtype;

/// Arrays inside arrays are followed to this depth.
const MAX_DEPTH: usize = 4;
/// Items one array may have; the largest vocabularies have about a quarter of a million.
const MAX_ITEMS: u64 = 1 << 21;

/// One line of the tensor table.
pub struct Entry {
    pub name: String,
    /// Rows and columns.
    pub shape: (usize, usize),
    kind: u32,
    /// From the start of the tensor bytes.
    pub offset: usize,
}

impl Entry {
    /// How the tensor is stored; a type without code is an error that names it.
    pub fn dtype(&self) -> Result<Dtype, Error> {
        Ok(match self.kind {
            0 => Dtype::F32,
            1 => Dtype::F16,
            3 => Dtype::Q4_1,
            8 => Dtype::Q8_0,
            30 => Dtype::Bf16,
            other => {
                let name = KINDS.iter().find(|(id, _)| *id == other).map_or("unknown", |(_, name)| name);
                return Err(Error::Unsupported(format!(
                    "type {name} ({other}) of tensor {:?}; convert the file to F32, F16, Q4_1 or Q8_0",
                    self.name
                )));
            }
        })
    }
}

const KINDS: [(u32, &str); 9] = [
    (2, "Q4_0"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
];

type Header = (HashMap<String, Value>, Vec<Entry>, usize);

/// Reads everything before the tensor bytes: pairs, tensor entries, and where the bytes begin.
pub fn read(bytes: &[u8]) -> Result<Header, Error> {
    let mut r = Reader { bytes, at: 0 };
    if r.take(4)? != b"GGUF" {
        return Err(bad("the first four bytes are not \"GGUF\""));
    }
    let version = r.u32()?;
    if version != 3 {
        return Err(Error::Unsupported(format!("GGUF version {version}; this engine reads version 3")));
    }
    // A tensor entry takes at least 24 bytes, a pair at least 13.
    let (tensors, pairs) = (r.u64()?, r.u64()?);
    let (tensors, pairs) = (r.count(tensors, 24)?, r.count(pairs, 13)?);
    let mut metadata = HashMap::new();
    for _ in 0..pairs {
        let (key, kind) = (r.text()?, r.u32()?);
        metadata.insert(key, r.value(kind, 0)?);
    }
    let mut entries = Vec::new();
    for _ in 0..tensors {
        entries.push(r.entry()?);
    }
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(Value::Unsigned(n)) if (1..=1 << 20).contains(n) => *n as usize,
        Some(other) => return Err(bad(format!("general.alignment is {other:?}"))),
    };
    Ok((metadata, entries, r.at.next_multiple_of(alignment)))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.bytes.len());
        let end =
            end.ok_or_else(|| bad(format!("it ends at byte {}, inside the header", self.bytes.len())))?;
        let out = &self.bytes[self.at..end];
        self.at = end;
        Ok(out)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    /// `n` items of at least `least` bytes each, refused where the rest of the file cannot hold them.
    fn count(&self, n: u64, least: usize) -> Result<usize, Error> {
        let room = (self.bytes.len() - self.at) / least;
        usize::try_from(n)
            .ok()
            .filter(|&n| n <= room)
            .ok_or_else(|| bad(format!("{n} items are announced at byte {} but at most {room} fit", self.at)))
    }

    fn text(&mut self) -> Result<String, Error> {
        let n = self.u64()?;
        let n = self.count(n, 1)?;
        let bytes = self.take(n)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| bad("a text is not UTF-8"))
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Value, Error> {
        Ok(match kind {
            0 => Value::Unsigned(self.array::<1>()?[0].into()),
            1 => Value::Signed(i64::from(self.array::<1>()?[0] as i8)),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()?[0] != 0),
            8 => Value::Text(self.text()?),
            9 => self.values(depth)?,
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(bad(format!("value type {other} does not exist"))),
        })
    }

    fn values(&mut self, depth: usize) -> Result<Value, Error> {
        if depth >= MAX_DEPTH {
            return Err(bad("arrays are nested too deeply"));
        }
        let (kind, n) = (self.u32()?, self.u64()?);
        if n > MAX_ITEMS {
            return Err(bad(format!("an array of {n} items is longer than {MAX_ITEMS}")));
        }
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            9 => 12,
            _ => 8,
        };
        let n = self.count(n, least)?;
        // No reservation by the announced count: a value takes more memory than its bytes in the file.
        let mut out = Vec::new();
        for _ in 0..n {
            out.push(self.value(kind, depth + 1)?);
        }
        Ok(Value::Array(out))
    }

    fn entry(&mut self) -> Result<Entry, Error> {
        let name = self.text()?;
        let dims = self.u32()?;
        if !(1..=2).contains(&dims) {
            return Err(Error::Unsupported(format!("{dims} dimensions of tensor {name:?}")));
        }
        let mut size =
            || self.u64().and_then(|n| usize::try_from(n).map_err(|_| bad("a dimension is too large")));
        let cols = size()?;
        let rows = if dims == 2 { size()? } else { 1 };
        let kind = self.u32()?;
        let offset = self.u64()?;
        let offset = usize::try_from(offset).map_err(|_| bad("a tensor offset is too large"))?;
        Ok(Entry { name, shape: (rows, cols), kind, offset })
    }
}
