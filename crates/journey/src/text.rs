//! A story for a terminal.

use std::fmt::Write as _;

use crate::story::{Chapter, Moment, Story};
use crate::words::duration;

/// How wide the chart beside the words is.
const CHART: usize = 24;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    pub colour: bool,
}

/// The whole story.
pub fn print(story: &Story, style: Style) -> String {
    let mut text = format!("{}\n", style.strong(&story.object));
    for chapter in &story.chapters {
        text.push('\n');
        text.push_str(&heading(chapter, style));
        for line in lines(story, chapter, style) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

fn heading(chapter: &Chapter, style: Style) -> String {
    let ready = chapter.ready.map(|ready| format!("ready after {}, ", duration(ready))).unwrap_or_default();
    let all = format!("{ready}{} in all", duration(chapter.took));
    format!("{}: {all}\n", style.strong(chapter.title))
}

/// A line for each moment of a chapter.
pub fn lines(story: &Story, chapter: &Chapter, style: Style) -> Vec<String> {
    chapter.moments.iter().map(|moment| line(story, chapter, moment, style)).collect()
}

fn line(story: &Story, chapter: &Chapter, moment: &Moment, style: Style) -> String {
    let mut text = String::new();
    let took = if moment.took == 0 { String::new() } else { duration(moment.took) };
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "{:>10}  {:>8}  {}  {}  {}",
        format!("+{}", duration(moment.after)),
        took,
        style.faint(&chart(chapter, moment)),
        style.part(moment.part),
        moment.what
    );
    if moment.times > 1 {
        let _ = write!(text, " ×{}", moment.times);
    }
    if moment.object != story.object {
        let _ = write!(text, "  {}", style.faint(&moment.object));
    }
    text
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

impl Style {
    fn strong(self, text: &str) -> String {
        self.paint("1", text)
    }

    fn faint(self, text: &str) -> String {
        self.paint("2", text)
    }

    fn part(self, part: &str) -> String {
        let colour = match part {
            "api" => "34",
            "controllers" => "35",
            "scheduler" => "33",
            "kubelet" => "32",
            _ => "36",
        };
        self.paint(colour, &format!("{part:<11}"))
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_as_text() {
        let moment = |after, took, part, what: &str| Moment {
            after,
            took,
            part,
            object: "pods/a/b".to_owned(),
            what: what.to_owned(),
            process: String::new(),
            times: 1,
        };
        let story = Story {
            object: "pods/a/b".to_owned(),
            chapters: vec![Chapter {
                title: "how it came to be",
                began: 5,
                took: 2_400,
                ready: Some(2_300),
                moments: vec![moment(0, 1_200, "api", "created"), moment(1_200, 0, "scheduler", "bound to n1")],
            }],
        };
        let expected = "pods/a/b

how it came to be: ready after 2.3 ms, 2.4 ms in all
     +0 µs    1.2 ms  ━━━━━━━━━━━━              api          created
   +1.2 ms                        ·             scheduler    bound to n1
";
        assert_eq!(print(&story, Style::default()), expected);
    }
}
