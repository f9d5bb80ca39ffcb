//! The ids that a user may map: its own, and the subordinate ones of `/etc/subuid` and `/etc/subgid`.

/// Images name users up to `nobody`, 65534.
pub const NEEDED: u32 = 65_536;

/// Consecutive ids of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub start: u32,
    pub count: u32,
}

/// The ranges of a user, by name or number, in a file such as `/etc/subuid`. Lines that are not understood count for nothing:
/// the program that maps the ids refuses them, too.
pub fn ranges(file: &str, user: &str, id: u32) -> Vec<Range> {
    let number = id.to_string();
    let of_line = |line: &str| {
        let mut fields = line.trim().split(':');
        let owner = fields.next()?;
        let range = Range { start: fields.next()?.parse().ok()?, count: fields.next()?.parse().ok()? };
        let is_whole = range.count > 0 && range.start.checked_add(range.count).is_some();
        ((owner == user || owner == number) && is_whole && fields.next().is_none()).then_some(range)
    };
    file.lines().filter_map(of_line).collect()
}

/// How many ids are in some ranges.
pub fn count(ranges: &[Range]) -> u32 {
    ranges.iter().fold(0, |sum, range| sum.saturating_add(range.count))
}

/// The arguments of `newuidmap` or `newgidmap` after the process: root is the user itself, and all others are subordinate.
pub fn map(own: u32, ranges: &[Range]) -> Vec<String> {
    let mut lines = vec![[0, own, 1]];
    let mut next = 1_u32;
    for range in ranges {
        lines.push([next, range.start, range.count]);
        next = next.saturating_add(range.count);
    }
    lines.into_iter().flatten().map(|number| number.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_by_name_or_number() {
        let file = "root:1:2\n\nann:100000:65536\n1000:300000:10\nanna:5:5\nann:x:1\nann:1\nann:4294967295:9\nann:1:2:3\nann:7:0\n";
        let expected = [Range { start: 100_000, count: 65_536 }, Range { start: 300_000, count: 10 }];
        assert_eq!(ranges(file, "ann", 1000), expected);
        assert_eq!(count(&expected), 65_546);
        assert_eq!(ranges(file, "bob", 1001), []);
        assert_eq!(count(&[]), 0);
    }

    #[test]
    fn root_is_the_user_and_the_others_follow_without_gaps() {
        let ranges = [Range { start: 100_000, count: 65_536 }, Range { start: 300_000, count: 10 }];
        assert_eq!(map(1000, &ranges).join(" "), "0 1000 1 1 100000 65536 65537 300000 10");
        assert_eq!(map(1000, &[]).join(" "), "0 1000 1");
    }
}
