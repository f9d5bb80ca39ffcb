//! Patterns of registries: host names with wildcards, an optional port, and a prefix of the path.

/// Whether the pattern covers the repository. Each label of the host is matched by itself.
pub fn covers(pattern: &str, repository: &str) -> bool {
    let (host, path) = split(pattern);
    let (repository_host, repository_path) = split(repository);
    let ((host, port), (repository_host, repository_port)) = (split_port(host), split_port(repository_host));
    let (labels, found): (Vec<&str>, Vec<&str>) = (host.split('.').collect(), repository_host.split('.').collect());
    port == repository_port
        && labels.len() == found.len()
        && repository_path.starts_with(path)
        && labels.iter().zip(&found).all(|(label, found)| matches(label, found))
}

/// The host and what follows it, with its slash.
fn split(address: &str) -> (&str, &str) {
    address.find('/').map_or((address, ""), |at| address.split_at(at))
}

fn split_port(host: &str) -> (&str, &str) {
    host.rsplit_once(':').unwrap_or((host, ""))
}

/// `*` matches any text, `?` one character, `[a-c]` and `[^a-c]` one of a set; a backslash takes the next one literally.
/// A malformed pattern matches nothing.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut place) = (0, 0);
    // Where to go on if the last star has to match one character more.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&'*') {
            retry = Some((at, place + 1));
            at += 1;
            continue;
        }
        match text.get(place) {
            None if at == pattern.len() => return true,
            Some(sign) if at < pattern.len() => {
                if let Some(next) = one(&pattern, at, *sign) {
                    (at, place) = (next, place + 1);
                    continue;
                }
            }
            _ => {}
        }
        match retry {
            Some((star, next)) if next <= text.len() => {
                (at, place) = (star + 1, next);
                retry = Some((star, next + 1));
            }
            _ => return false,
        }
    }
}

/// The place after the element at `at`, if it matches this character.
fn one(pattern: &[char], at: usize, sign: char) -> Option<usize> {
    match pattern[at] {
        '?' => Some(at + 1),
        '\\' => (*pattern.get(at + 1)? == sign).then_some(at + 2),
        '[' => set(pattern, at + 1, sign),
        literal => (literal == sign).then_some(at + 1),
    }
}

fn set(pattern: &[char], mut at: usize, sign: char) -> Option<usize> {
    let is_inverted = *pattern.get(at)? == '^';
    at += usize::from(is_inverted);
    let (mut found, first) = (false, at);
    while at == first || *pattern.get(at)? != ']' {
        let low = *pattern.get(at)?;
        let high = if pattern.get(at + 1) == Some(&'-') { *pattern.get(at + 2)? } else { low };
        at += if pattern.get(at + 1) == Some(&'-') { 3 } else { 1 };
        found |= (low..=high).contains(&sign);
    }
    (found != is_inverted).then_some(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_cover_hosts_ports_and_paths() {
        for (pattern, repository, expected) in [
            ("r.example.org", "r.example.org/a/b", true),
            ("r.example.org/a", "r.example.org/a/b", true),
            ("r.example.org/a", "r.example.org/b", false),
            ("r.example.org", "r.example.org:5000/b", false),
            ("*.example.org", "r.example.org/a", true),
            ("*.example.org", "example.org/a", false),
            ("*.*.example.org", "a.b.example.org/a", true),
            ("*.example.org:5000", "r.example.org:5000/a", true),
            ("a*c*e.io", "abcde.io/x", true),
            ("a*c*e.io", "abcdf.io/x", false),
            ("r?.io", "r1.io/x", true),
            ("r?.io", "r.io/x", false),
            ("r[0-3].io", "r2.io/x", true),
            ("r[^0-3].io", "r2.io/x", false),
            ("r[0-3.io", "r2.io/x", false),
            ("*", "localhost/x", true),
            ("**", "localhost/x", true),
            ("*", "r.io/x", false),
        ] {
            assert_eq!(covers(pattern, repository), expected, "{pattern} {repository}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_exponential_time() {
        assert!(!covers(&format!("{}b", "a*".repeat(200)), &"a".repeat(5000)));
    }
}
