//! A story for a terminal.

use crate::phases::Phase;
use crate::story::{Chapter, Moment, Story};
use crate::words::duration;

/// How wide the chart beside the words is, and the bars of phases.
const CHART: usize = 24;
const BAR: usize = 40;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    pub colour: bool,
    /// Lines are cut at this many columns.
    pub width: Option<usize>,
}

/// The whole story.
pub fn print(story: &Story, style: Style) -> String {
    let mut text = format!("{}\n", style.paint(STRONG, &story.object));
    for chapter in &story.chapters {
        text.push('\n');
        text.push_str(&heading(chapter, style));
        for line in phases(story, chapter, style).into_iter().chain(moments(story, chapter, style)) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

fn heading(chapter: &Chapter, style: Style) -> String {
    format!("{}: {}\n", style.paint(STRONG, chapter.title), chapter.in_words())
}

/// A line for the beginning of a chapter.
pub fn title(story: &Story, chapter: &Chapter, style: Style) -> String {
    style.paint(STRONG, &format!("{}, {}", story.object, chapter.title))
}

/// A line for what came of a chapter.
pub fn outcome(chapter: &Chapter, style: Style) -> String {
    style.paint(STRONG, &format!("{:>12}  {}", "", chapter.in_words()))
}

/// A line for a moment as it happens, when nobody knows yet how long the whole will take.
pub fn news(story: &Story, moment: &Moment, style: Style) -> String {
    line(story, moment, None, style)
}

fn phases(story: &Story, chapter: &Chapter, style: Style) -> Vec<String> {
    let phases = chapter.phases();
    if phases.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![style.paint(FAINT, &format!("  {}", story.whose_time(chapter)))];
    let longest = phases.iter().map(|phase| phase.took).max().unwrap_or(1).max(1);
    lines.extend(phases.iter().map(|phase| {
        let columns = usize::try_from(phase.took * BAR as u64 / longest).unwrap_or(BAR);
        let bar = if columns == 0 { "▏".to_owned() } else { "█".repeat(columns) };
        let Phase { name, part, took } = phase;
        format!("    {name:<24}{:>10}  {}", duration(*took), style.paint(colour(part), &bar))
    }));
    lines.push(String::new());
    lines
}

fn moments(story: &Story, chapter: &Chapter, style: Style) -> Vec<String> {
    chapter.moments.iter().map(|moment| line(story, moment, Some(chapter), style)).collect()
}

fn line(story: &Story, moment: &Moment, chapter: Option<&Chapter>, style: Style) -> String {
    let took = if moment.took == 0 { String::new() } else { duration(moment.took) };
    let mut pieces = vec![(PLAIN, format!("{:>12}  {took:>8}  ", format!("+{}", duration(moment.after))))];
    if let Some(chapter) = chapter {
        pieces.push((colour(moment.part), format!("{}  ", chart(chapter, moment))));
    }
    pieces.push((colour(moment.part), format!("{:<11}  ", moment.part)));
    pieces.push((PLAIN, moment.what.clone()));
    if moment.repeated > 0 {
        pieces.push((FAINT, format!(" (and {} more)", times(moment.repeated))));
    }
    if moment.object != story.object {
        pieces.push((FAINT, format!("  {}", story.short(&moment.object))));
    }
    if !moment.detail.is_empty() {
        pieces.push((FAINT, format!("  ({})", moment.detail)));
    }
    style.join(&pieces)
}

pub(crate) fn times(number: u32) -> String {
    if number == 1 { "once".to_owned() } else { format!("{number} times") }
}

/// Where in the chapter a moment lies.
fn chart(chapter: &Chapter, moment: &Moment) -> String {
    let total = chapter.took.max(1);
    let column = |micros: u64| usize::try_from(micros * CHART as u64 / total).unwrap_or(CHART);
    let begin = column(moment.after).min(CHART - 1);
    let end = column(moment.after + moment.took).clamp(begin + 1, CHART);
    let mark = if moment.took == 0 { '·' } else { '━' };
    (0..CHART).map(|place| if (begin..end).contains(&place) { mark } else { ' ' }).collect()
}

const PLAIN: &str = "";
const STRONG: &str = "1";
const FAINT: &str = "2";

fn colour(part: &str) -> &'static str {
    match part {
        "api" => "34",
        "controllers" => "35",
        "scheduler" => "33",
        "kubelet" => "32",
        _ => "36",
    }
}

impl Style {
    /// Puts pieces together, up to the width of the terminal.
    fn join(self, pieces: &[(&str, String)]) -> String {
        let mut left = self.width.unwrap_or(usize::MAX);
        let mut text = String::new();
        for (code, piece) in pieces {
            let length = piece.chars().count();
            if length <= left {
                text.push_str(&self.paint(code, piece));
                left -= length;
                continue;
            }
            if left > 0 {
                let cut: String = piece.chars().take(left - 1).chain(['…']).collect();
                text.push_str(&self.paint(code, &cut));
            }
            break;
        }
        text.trim_end().to_owned()
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour && !code.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;

    fn story() -> Story {
        let moment = |after, took, part, what: &str| Moment {
            after,
            took,
            part,
            object: "pods/a/b".to_owned(),
            what: what.to_owned(),
            ..Moment::default()
        };
        let created = Moment { detail: "stored 1.1 ms, revision 7".to_owned(), ..moment(0, 1_200, "api", "created") };
        let seen = Moment { object: "jobs/a/j".into(), repeated: 1, ..moment(300, 1, "controllers", "seen") };
        let outcome = Outcome {
            after: Some(2_300),
            words: "ready after 2.3 ms".to_owned(),
            slowest: "pods/a/b".to_owned(),
            phases: vec![
                Phase { name: "scheduling", part: "scheduler", took: 2_000 },
                Phase { name: "images", part: "kubelet", took: 300 },
            ],
        };
        let moments = vec![created, seen, moment(1_200, 0, "scheduler", "bound to n1")];
        let chapter = Chapter { title: "how it came to be", began: 5, took: 2_400, outcome, moments };
        Story { object: "pods/a/b".to_owned(), chapters: vec![chapter] }
    }

    #[test]
    fn a_story_as_text() {
        let expected = "pods/a/b

how it came to be: ready after 2.3 ms
  where the time went
    scheduling                  2.0 ms  ████████████████████████████████████████
    images                      300 µs  ██████

       +0 µs    1.2 ms  ━━━━━━━━━━━━              api          created  (stored 1.1 ms, revision 7)
     +300 µs      1 µs     ━                      controllers  seen (and once more)  jobs/j
     +1.2 ms                        ·             scheduler    bound to n1
";
        assert_eq!(print(&story(), Style::default()), expected);
    }

    #[test]
    fn lines_end_where_the_terminal_does() {
        for (width, expected) in [(70, "api          created\n"), (74, "api          created  (…\n")] {
            let text = print(&story(), Style { width: Some(width), ..Style::default() });
            assert!(text.contains(expected), "{text}");
        }
    }
}
