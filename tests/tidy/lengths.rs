//! Ceilings: a longer file holds two concepts, a longer function two steps.

use crate::source::{Finding, Source, closing, find_word, line_of};

/// Lines of a file without its tests.
const FILE_LINES: usize = 400;
/// Lines of a function, from `fn` to its closing brace.
const FUNCTION_LINES: usize = 70;

pub fn check_file(source: &Source) -> Vec<Finding> {
    let lines = source.shipped_lines();
    if lines <= FILE_LINES {
        return Vec::new();
    }
    vec![
        source.finding(
            0,
            format!("{lines} lines without tests, {FILE_LINES} at most: which concept is missing?"),
        ),
    ]
}

pub fn check_functions(source: &Source) -> Vec<Finding> {
    let code = source.shipped.as_str();
    find_word(code, "fn").into_iter().filter_map(|at| long_function(source, code, at)).collect()
}

fn long_function(source: &Source, code: &str, at: usize) -> Option<Finding> {
    let name_and_rest = code[at + "fn".len()..].trim_start();
    let name: String = name_and_rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    // A function pointer type has no name; a declaration without a body ends at its semicolon.
    if name.is_empty() {
        return None;
    }
    let open = body(code, at)?;
    let lines = code[at..closing(code, open)].lines().count();
    (lines > FUNCTION_LINES).then(|| {
        let says = format!("fn {name} has {lines} lines, {FUNCTION_LINES} at most: split it by step");
        source.finding(line_of(code, at), says)
    })
}

fn body(code: &str, from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let stop = at + code[at..].find(['(', '[', '{', ';'])?;
        match code.as_bytes()[stop] {
            b'{' => return Some(stop),
            b';' => return None,
            _ => at = closing(code, stop),
        }
    }
}

mod tests {
    use super::*;

    #[test]
    fn a_file_over_the_ceiling_is_found_and_its_tests_do_not_count() {
        let long = "const A: u8 = 1;\n".repeat(FILE_LINES + 1);
        assert_eq!(check_file(&Source::new("src/a.rs", &long)).len(), 1);
        let tests = format!("fn a() {{}}\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert_eq!(check_file(&Source::new("src/a.rs", &tests)), vec![]);
    }

    #[test]
    fn a_long_function_is_found_by_name() {
        let body = "    call([1; 3]);\n".repeat(FUNCTION_LINES - 1);
        let text = format!(
            "type F = fn(u8) -> u8;\ntrait T {{ fn short(a: [u8; 2]); }}\nfn long(a: [u8; 4])\n{{\n{body}}}\n"
        );
        let found = check_functions(&Source::new("src/a.rs", &text));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].says.starts_with("fn long has 72 lines") && found[0].line == 3, "{found:?}");
    }

    #[test]
    fn a_function_at_the_ceiling_is_fine() {
        let text = format!("fn f() {{\n{}}}\n", "    call();\n".repeat(FUNCTION_LINES - 2));
        assert_eq!(check_functions(&Source::new("src/a.rs", &text)), vec![]);
    }
}
