//! Replaces references to variables, within limits: each reference repeats a value that may itself consist of references, so
//! a short list of variables could otherwise become any amount of text.

use std::collections::BTreeMap;

/// Bytes of an environment or a command line. The kernel starts no program with more than six megabytes of both.
const MAX_BYTES: usize = 8 << 20;
/// Bytes of a path, more than any file system allows.
const MAX_PATH: usize = 16 << 10;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("variables expand to more than {0} bytes")]
pub struct TooLong(usize);

/// How much text may still be produced.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    left: usize,
}

impl Budget {
    /// For a whole environment, or a whole command line.
    pub fn of_program() -> Self {
        Self { limit: MAX_BYTES, left: MAX_BYTES }
    }

    pub fn of_path() -> Self {
        Self { limit: MAX_PATH, left: MAX_PATH }
    }

    pub fn spend(&mut self, bytes: usize) -> Result<(), TooLong> {
        self.left = self.left.checked_sub(bytes).ok_or(TooLong(self.limit))?;
        Ok(())
    }
}

/// Replaces `$(NAME)` by its value and `$$` by `$`; unknown names stay as they are.
pub fn expand(text: &str, known: &BTreeMap<String, String>, budget: &mut Budget) -> Result<String, TooLong> {
    let mut result = String::new();
    let mut put = |part: &str, result: &mut String| -> Result<(), TooLong> {
        budget.spend(part.len())?;
        result.push_str(part);
        Ok(())
    };
    // Nothing behind the last parenthesis is a reference: it is not looked for again at each `$(`.
    let (mut rest, behind) = text.split_at(text.rfind(')').map_or(0, |last| last + 1));
    while let Some(position) = rest.find('$') {
        put(&rest[..position], &mut result)?;
        let after = &rest[position + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            put("$", &mut result)?;
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match known.get(name) {
                Some(value) => put(value, &mut result)?,
                None => ["$(", name, ")"].into_iter().try_for_each(|part| put(part, &mut result))?,
            }
            rest = tail;
        } else {
            put("$", &mut result)?;
            rest = after;
        }
    }
    put(rest, &mut result)?;
    put(&behind.replace("$$", "$"), &mut result)?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_expand_once() {
        let known = BTreeMap::from([("A".to_string(), "1".to_string()), ("B".to_string(), "$(A)".to_string())]);
        for (text, expected) in [
            ("x$(A)y", "x1y"),
            ("$(B)", "$(A)"),
            ("$$(A)", "$(A)"),
            ("$(missing)", "$(missing)"),
            ("$", "$"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("$$$(A)", "$1"),
            ("$(A)$(A$$", "1$(A$"),
            ("$$$", "$$"),
            ("a)$$b", "a)$b"),
        ] {
            assert_eq!(expand(text, &known, &mut Budget::of_program()).as_deref(), Ok(expected), "{text}");
        }
    }

    /// Forty variables that each repeat the one before twice would be a terabyte.
    #[test]
    fn references_to_references_do_not_fill_memory() {
        let mut budget = Budget::of_program();
        let mut known = BTreeMap::from([("V0".to_string(), "x".repeat(16))]);
        let expanded = (1..40).try_for_each(|number| {
            let value = expand(&format!("$(V{0})$(V{0})", number - 1), &known, &mut budget)?;
            known.insert(format!("V{number}"), value);
            Ok(())
        });
        assert_eq!(expanded, Err(TooLong(MAX_BYTES)));
        assert!(known.values().map(String::len).sum::<usize>() <= MAX_BYTES + 16);
        let path = BTreeMap::from([("A".to_string(), "x".repeat(1000))]);
        assert!(expand(&"$(A)".repeat(1000), &path, &mut Budget::of_path()).is_err());
    }

    /// Each opening parenthesis must not be a search through all that follows.
    #[test]
    fn open_references_take_no_time() {
        let text = "$(".repeat(5 << 19);
        let started = std::time::Instant::now();
        assert_eq!(expand(&text, &BTreeMap::new(), &mut Budget::of_program()).as_deref(), Ok(text.as_str()));
        assert!(started.elapsed() < std::time::Duration::from_secs(20), "{:?}", started.elapsed());
    }
}
