#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| serin_fuzz::masks::masks(input));
