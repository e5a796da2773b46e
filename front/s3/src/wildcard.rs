//! Patterns with wildcards, over characters as clients write them, however many bytes each has.

/// True when the text fits the pattern, in which `*` is anything, and `one`, where there is such a character, any other one.
pub(crate) fn fits(pattern: &str, text: &str, one: Option<char>) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // The pattern behind the last star, and the text behind what that has taken.
    let mut star = None;
    loop {
        let here = text.clone();
        match (pattern.next(), text.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                text = here;
                star = Some((pattern.clone(), text.clone()));
            }
            (Some(wanted), Some(found)) if wanted == found || Some(wanted) == one => {}
            _ => {
                // The star takes one more.
                let Some((behind, rest)) = &mut star else { return false };
                if rest.next().is_none() {
                    return false;
                }
                (pattern, text) = (behind.clone(), rest.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_anything_and_another_wildcard_is_one_character() {
        for (pattern, text, is_fit) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("a*b", "ab", true),
            ("a*b", "axxbxb", true),
            ("a*b", "axxbx", false),
            ("a*", "a", true),
            ("**", "a", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("?", "", false),
            ("a?", "a\u{fc}", true),
            ("a?", "a\u{1f600}", true),
            ("a??", "a\u{fc}", false),
            ("*?\u{fc}", "\u{e4}\u{fc}\u{fc}", true),
            // Of its bytes, the first is that of another character.
            ("*\u{fc}", "\u{e4}", false),
            ("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(fits(pattern, text, Some('?')), is_fit, "{pattern} {text}");
        }
        // Where there is none, it means itself.
        assert!(!fits("a?c", "abc", None) && fits("a?c*", "a?cd", None));
    }
}
