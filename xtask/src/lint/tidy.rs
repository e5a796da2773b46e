//! What a file of the project looks like: short, in short functions, and without unsafe code outside `host/`.

use std::path::Path;

/// The most lines of a product file; 300 is the aim.
const FILE_LINES: usize = 600;

/// The most lines from a function's signature to its closing brace, blank lines and comments not counted.
const FUNCTION_LINES: usize = 70;

/// One line for each rule that the file breaks.
pub fn complaints(path: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if !path.starts_with("host/") {
        let lines = text.lines().enumerate().filter(|(_, line)| is_unsafe(path, line));
        complaints.extend(lines.map(|(at, _)| format!("{path}:{}: unsafe code belongs under host/", at + 1)));
    }
    if !has_extension(path, "rs") {
        return complaints;
    }
    let lines = text.lines().count();
    if lines > FILE_LINES {
        complaints.push(format!("{path}: {lines} lines, {FILE_LINES} at most: split it by subject"));
    }
    complaints.extend(long_functions(product(path, text)).into_iter().map(|(at, lines)| {
        format!("{path}:{at}: a function of {lines} lines, {FUNCTION_LINES} at most: give its steps names")
    }));
    complaints
}

fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

/// True for a line that holds unsafe code or lets it in.
fn is_unsafe(path: &str, line: &str) -> bool {
    if has_extension(path, "toml") {
        return line.split('#').next().is_some_and(|line| line.trim_start().starts_with("unsafe_code"))
            && !line.contains("deny");
    }
    let code = code(line);
    if code.contains("(unsafe_code)") {
        return !code.contains("deny") && !code.contains("forbid");
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices("unsafe").any(|(at, word)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The line without its comment and without what is in quotes.
fn code(line: &str) -> String {
    let line = line.split("//").next().unwrap_or_default();
    line.split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
}

/// The part of a file that is no test: a test may hold a long table of cases.
fn product<'a>(path: &str, text: &'a str) -> &'a str {
    let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
    if is_test { "" } else { text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default() }
}

/// Line number and length of each function that is too long. Trusts rustfmt: a function ends at the first line that
/// is a closing brace as far to the left as its signature.
fn long_functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut long = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| starts_function(line)) {
        let indent = line.len() - line.trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        let body = lines[at..].iter().take_while(|line| **line != end && !is_bodiless(line, indent));
        let length = body.filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//")).count() + 1;
        if length > FUNCTION_LINES {
            long.push((at + 1, length));
        }
    }
    long
}

fn starts_function(line: &str) -> bool {
    let words = code(line);
    let mut words = words.trim_start().split(' ');
    let qualifier = |word: &str| matches!(word, "const" | "async" | "unsafe" | "extern") || word.starts_with("pub");
    words.find(|word| !qualifier(word)) == Some("fn")
}

/// True for the last line of a function that has no body of its own to measure: a declaration or a single line.
fn is_bodiless(line: &str, indent: usize) -> bool {
    line.len() - line.trim_start().len() == indent && (line.ends_with(';') || line.ends_with(" }"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_is_for_host_alone() {
        let code = "fn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(
            complaints("engine/block/src/x.rs", code),
            ["engine/block/src/x.rs:2: unsafe code belongs under host/"]
        );
        assert!(complaints("host/disk/src/x.rs", code).is_empty());
        assert_eq!(complaints("front/x.rs", "#![allow(unsafe_code)]\n").len(), 1);
        assert_eq!(complaints("front/Cargo.toml", "unsafe_code = \"allow\"\n").len(), 1);
        assert!(complaints("Cargo.toml", "unsafe_code = \"deny\"\n").is_empty());
        assert!(complaints("front/x.rs", "// unsafe in words\nlet unsafely = \"unsafe {\";\n").is_empty());
    }

    #[test]
    fn long_files_are_named() {
        assert!(complaints("a.rs", &"x;\n".repeat(FILE_LINES)).is_empty());
        assert_eq!(complaints("a.rs", &"x;\n".repeat(FILE_LINES + 1)).len(), 1);
    }

    #[test]
    fn long_functions_are_named_and_their_comments_are_free() {
        let body = |line: &str| format!("impl X {{\n    pub async fn f(\n        a: u8,\n    ) {{\n{line}    }}\n}}\n");
        let at_most = FUNCTION_LINES - 4;
        assert!(complaints("a.rs", &body(&"        x();\n".repeat(at_most))).is_empty());
        assert!(complaints("a.rs", &body(&"        // why\n\n".repeat(100))).is_empty());
        let complaints = complaints("a.rs", &body(&"        x();\n".repeat(at_most + 1)));
        assert!(complaints.len() == 1 && complaints[0].starts_with("a.rs:2:"), "{complaints:?}");
        let long = body(&"        x();\n".repeat(at_most + 1));
        assert!(super::complaints("a/tests.rs", &long).is_empty());
        assert!(super::complaints("a.rs", &format!("#[cfg(test)]\nmod tests {{\n{long}}}\n")).is_empty());
    }

    #[test]
    fn declarations_and_one_liners_end_where_they_stand() {
        let text = format!("fn f();\nfn g() {{ x() }}\n{}", "struct S;\n".repeat(100));
        assert!(complaints("a.rs", &text).is_empty());
    }
}
