//! A map that remembers about as much as it was told, by what was used last.

use std::collections::HashMap;
use std::hash::Hash;

/// Two halves: when the newer is full, the older is forgotten. What is asked for moves to the newer half. So nothing is
/// forgotten before half as many others were used as fit in.
pub struct Recent<K, V> {
    newer: HashMap<K, V>,
    older: HashMap<K, V>,
    half: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    /// A map of at most so many entries.
    pub fn new(entries: usize) -> Self {
        Self { newer: HashMap::new(), older: HashMap::new(), half: (entries / 2).max(1) }
    }

    pub fn clear(&mut self) {
        self.newer.clear();
        self.older.clear();
    }

    pub fn insert(&mut self, key: K, value: V) {
        if self.newer.len() >= self.half && !self.newer.contains_key(&key) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, value);
    }

    pub fn get(&mut self, key: &K) -> Option<&V> {
        if !self.newer.contains_key(key) {
            let (key, value) = self.older.remove_entry(key)?;
            self.insert(key, value);
        }
        self.newer.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_number_is_bounded() {
        let mut recent = Recent::new(10);
        for number in 0..1000 {
            recent.insert(number, number * 2);
            assert_eq!(recent.get(&0), Some(&0), "used every time");
            assert!(recent.newer.len() + recent.older.len() <= 10);
        }
        assert_eq!(recent.get(&999), Some(&1998));
        assert_eq!(recent.get(&500), None);
        recent.clear();
        assert_eq!(recent.get(&0), None);
    }
}
