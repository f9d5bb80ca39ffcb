//! Unified diffs of two objects, which Kubernetes includes in messages about immutable fields.

use std::collections::HashMap;

use serde_json::Value;

use super::internal_types;

/// Returns the diff of two pod specs.
pub fn of_pod_specs(old: &Value, new: &Value) -> String {
    unified(&internal_types::to_json_pretty("PodSpec", old), &internal_types::to_json_pretty("PodSpec", new))
}

/// Returns the diff of two ephemeral containers.
pub fn of_ephemeral_containers(old: &Value, new: &Value) -> String {
    unified(
        &internal_types::to_json_pretty("EphemeralContainer", old),
        &internal_types::to_json_pretty("EphemeralContainer", new),
    )
}

/// Returns the diff of two specs of PersistentVolumeClaims.
pub fn of_claim_specs(old: &Value, new: &Value) -> String {
    let name = "PersistentVolumeClaimSpec";
    unified(&internal_types::to_json_pretty(name, old), &internal_types::to_json_pretty(name, new))
}

/// Returns the diff of two sources of PersistentVolumes.
pub fn of_volume_sources(old: &Value, new: &Value) -> String {
    let name = "PersistentVolumeSource";
    unified(&internal_types::to_json_pretty(name, old), &internal_types::to_json_pretty(name, new))
}

const CONTEXT: usize = 3;

/// Returns the unified diff of two texts with three lines of context.
pub fn unified(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.split('\n').collect(), new.split('\n').collect());
    let mut text = String::new();
    for hunk in hunks(&steps(&old, &new)) {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let from = range(first.old.start, last.old.end);
        let to = range(first.new.start, last.new.end);
        text.push_str(&format!("@@ -{from} +{to} @@\n"));
        for step in &hunk {
            let mut lines = |mark: char, lines: &[&str]| {
                for line in lines {
                    text.push(mark);
                    text.push_str(line);
                    text.push('\n');
                }
            };
            if step.equal {
                lines(' ', &old[step.old.clone()]);
            } else {
                lines('-', &old[step.old.clone()]);
                lines('+', &new[step.new.clone()]);
            }
        }
    }
    text
}

fn range(start: usize, end: usize) -> String {
    match end - start {
        1 => (start + 1).to_string(),
        0 => format!("{start},0"),
        length => format!("{},{length}", start + 1),
    }
}

/// A range of lines that are equal, or that are replaced by others.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    equal: bool,
    old: std::ops::Range<usize>,
    new: std::ops::Range<usize>,
}

/// Splits the steps into hunks, where more lines are equal than two contexts cover.
fn hunks(steps: &[Step]) -> Vec<Vec<Step>> {
    let mut steps = steps.to_vec();
    if let Some(first) = steps.first_mut().filter(|step| step.equal) {
        first.old.start = first.old.start.max(first.old.end.saturating_sub(CONTEXT));
        first.new.start = first.new.start.max(first.new.end.saturating_sub(CONTEXT));
    }
    if let Some(last) = steps.last_mut().filter(|step| step.equal) {
        last.old.end = last.old.end.min(last.old.start + CONTEXT);
        last.new.end = last.new.end.min(last.new.start + CONTEXT);
    }
    let mut hunks = Vec::new();
    let mut hunk: Vec<Step> = Vec::new();
    for step in steps {
        if step.equal && step.old.len() > 2 * CONTEXT {
            hunk.push(Step {
                equal: true,
                old: step.old.start..step.old.start + CONTEXT,
                new: step.new.start..step.new.start + CONTEXT,
            });
            hunks.push(std::mem::take(&mut hunk));
            hunk.push(Step {
                equal: true,
                old: step.old.end - CONTEXT..step.old.end,
                new: step.new.end - CONTEXT..step.new.end,
            });
        } else {
            hunk.push(step);
        }
    }
    if hunk.iter().any(|step| !step.equal) {
        hunks.push(hunk);
    }
    hunks
}

fn steps(old: &[&str], new: &[&str]) -> Vec<Step> {
    let mut steps = Vec::new();
    let (mut i, mut j) = (0, 0);
    for (a, b, length) in matching_blocks(old, new) {
        if i < a || j < b {
            steps.push(Step { equal: false, old: i..a, new: j..b });
        }
        if length > 0 {
            steps.push(Step { equal: true, old: a..a + length, new: b..b + length });
        }
        (i, j) = (a + length, b + length);
    }
    steps
}

/// Finds the ranges that both texts share, starting from the longest one. Frequent lines of a long text are not used as
/// starting points.
fn matching_blocks(old: &[&str], new: &[&str]) -> Vec<(usize, usize, usize)> {
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (j, line) in new.iter().enumerate() {
        places.entry(line).or_default().push(j);
    }
    if new.len() >= 200 {
        let often = new.len() / 100 + 1;
        places.retain(|_, lines| lines.len() <= often);
    }
    let mut found = Vec::new();
    let mut queue = vec![(0, old.len(), 0, new.len())];
    while let Some((old_start, old_end, new_start, new_end)) = queue.pop() {
        let (i, j, length) = longest_match(old, new, &places, (old_start, old_end, new_start, new_end));
        if length == 0 {
            continue;
        }
        found.push((i, j, length));
        queue.push((old_start, i, new_start, j));
        queue.push((i + length, old_end, j + length, new_end));
    }
    found.sort_unstable();
    let mut joined: Vec<(usize, usize, usize)> = Vec::new();
    for (i, j, length) in found {
        match joined.last_mut() {
            Some((a, b, count)) if *a + *count == i && *b + *count == j => *count += length,
            _ => joined.push((i, j, length)),
        }
    }
    joined.push((old.len(), new.len(), 0));
    joined
}

fn longest_match(
    old: &[&str],
    new: &[&str],
    places: &HashMap<&str, Vec<usize>>,
    (old_start, old_end, new_start, new_end): (usize, usize, usize, usize),
) -> (usize, usize, usize) {
    let (mut best_i, mut best_j, mut best) = (old_start, new_start, 0);
    let mut lengths: HashMap<usize, usize> = HashMap::new();
    for (i, line) in old.iter().enumerate().take(old_end).skip(old_start) {
        let mut next = HashMap::new();
        for &j in places.get(line).into_iter().flatten() {
            if j < new_start {
                continue;
            }
            if j >= new_end {
                break;
            }
            let length = j.checked_sub(1).and_then(|j| lengths.get(&j)).copied().unwrap_or(0) + 1;
            next.insert(j, length);
            if length > best {
                (best_i, best_j, best) = (i + 1 - length, j + 1 - length, length);
            }
        }
        lengths = next;
    }
    while best_i > old_start && best_j > new_start && old[best_i - 1] == new[best_j - 1] {
        (best_i, best_j, best) = (best_i - 1, best_j - 1, best + 1);
    }
    while best_i + best < old_end && best_j + best < new_end && old[best_i + best] == new[best_j + best] {
        best += 1;
    }
    (best_i, best_j, best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_have_three_lines_of_context() {
        let old: Vec<String> = (1..=20).map(|n| n.to_string()).collect();
        let mut new = old.clone();
        new[9] = "ten".to_owned();
        assert_eq!(
            unified(&old.join("\n"), &new.join("\n")),
            "@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n"
        );
        new.remove(0);
        assert_eq!(
            unified(&old.join("\n"), &new.join("\n")),
            "@@ -1,4 +1,3 @@\n-1\n 2\n 3\n 4\n@@ -7,7 +6,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n"
        );
        assert_eq!(unified("a\nb", "a\nb"), "");
    }
}
