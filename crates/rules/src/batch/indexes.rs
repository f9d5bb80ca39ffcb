//! Parses sets of completion indexes: `1,3-5,7`.

/// Returns the number of indexes, or the error of the text.
pub fn count(text: &str, completions: i64) -> Result<i64, String> {
    let mut total = 0;
    let mut last: Option<i64> = None;
    if text.is_empty() {
        return Ok(0);
    }
    for part in text.split(',') {
        let (first, end) = interval(part, completions)?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(format!("non-increasing order, previous: {last}, current: {first}"));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// Returns the first index that is in both sets. Invalid intervals are skipped.
pub fn overlap(one: &str, other: &str, completions: i64) -> Option<i64> {
    let read = |text: &str| -> Vec<(i64, i64)> {
        text.split(',').filter_map(|part| interval(part, completions).ok()).collect()
    };
    let (one, other) = (read(one), read(other));
    let (mut i, mut j) = (0, 0);
    while let (Some(a), Some(b)) = (one.get(i), other.get(j)) {
        if a.0 <= b.1 && b.0 <= a.1 {
            return Some(a.0.max(b.0));
        }
        if a.0 <= b.0 { i += 1 } else { j += 1 }
    }
    None
}

fn interval(text: &str, completions: i64) -> Result<(i64, i64), String> {
    let limits: Vec<&str> = text.split('-').collect();
    if limits.len() > 2 {
        return Err(format!(
            "the fragment {text:?} violates the requirement that an index interval can have at most two parts separated \
             by '-'"
        ));
    }
    let first = index(limits[0], completions)?;
    let Some(last) = limits.get(1) else { return Ok((first, first)) };
    let last = index(last, completions)?;
    if first >= last {
        return Err(format!("non-increasing order, previous: {first}, current: {last}"));
    }
    Ok((first, last))
}

fn index(text: &str, completions: i64) -> Result<i64, String> {
    let number: i64 = text.parse().map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
    if number >= completions { Err(format!("too large index: {text:?}")) } else { Ok(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_counted_or_refused() {
        for (text, read) in [
            ("", Ok(0)),
            ("0,2-4", Ok(4)),
            ("2,1", Err("non-increasing order, previous: 2, current: 1")),
            ("4-2", Err("non-increasing order, previous: 4, current: 2")),
            ("9", Err("too large index: \"9\"")),
            ("x", Err("cannot convert string to integer for index: \"x\"")),
        ] {
            assert_eq!(count(text, 5), read.map_err(str::to_owned), "{text}");
        }
        assert_eq!(overlap("0-2,4", "3-4", 5), Some(4));
        assert_eq!(overlap("0-2", "3-4", 5), None);
    }
}
