//! Reading of golden safetensors in tests.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

/// A file of golden tensors, kept as bytes.
pub struct Golden(Vec<u8>);

/// A path under `tests/data`.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

impl Golden {
    pub fn open(name: &str) -> Golden {
        Golden(std::fs::read(data(name)).expect("golden files are part of the repository"))
    }

    fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let tensors = SafeTensors::deserialize(&self.0).expect("golden files are safetensors");
        tensors.tensor(name).ok().map(|view| view.data().to_vec())
    }

    fn words<const N: usize>(&self, name: &str) -> Vec<[u8; N]> {
        let bytes = self.bytes(name).unwrap_or_else(|| panic!("no golden tensor {name}"));
        bytes.as_chunks::<N>().0.to_vec()
    }

    #[allow(dead_code, reason = "each test file uses its part")]
    pub fn has(&self, name: &str) -> bool {
        self.bytes(name).is_some()
    }

    #[allow(dead_code, reason = "each test file uses its part")]
    pub fn names(&self) -> Vec<String> {
        let tensors = SafeTensors::deserialize(&self.0).expect("golden files are safetensors");
        tensors.names().into_iter().map(str::to_owned).collect()
    }

    pub fn f32s(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_le_bytes).collect()
    }

    #[allow(dead_code, reason = "each test file uses its part")]
    pub fn f64s(&self, name: &str) -> Vec<f64> {
        self.words(name).into_iter().map(f64::from_le_bytes).collect()
    }

    pub fn i32s(&self, name: &str) -> Vec<i32> {
        self.words(name).into_iter().map(i32::from_le_bytes).collect()
    }
}
