//! A story as one page that needs nothing else: no script, no font, no other file. Each step is a row with its place on the
//! time axis; which parts are shown is chosen with the boxes at the top.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use jiff::Timestamp;

use crate::story::{Chapter, Moment, Story};
use crate::text::times;
use crate::words::duration;

/// How many objects have a lane of their own.
const LANES: usize = 40;

const STYLE: &str = include_str!("page.css");

/// The whole page.
pub fn page(story: &Story) -> String {
    let title = escape(&story.object);
    let parts: BTreeSet<&str> =
        story.chapters.iter().flat_map(|chapter| &chapter.moments).map(|moment| moment.part).collect();
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>The journey of {title}</title>\n<style>\n{STYLE}{}</style>\n<main>\n<h1>{title}</h1>\n",
        parts.iter().map(|part| hiding(part)).collect::<String>()
    );
    if let Some(first) = story.chapters.first() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "<p class=\"when\">{}</p>", when(first.began));
    }
    text.push_str("<div class=\"legend\">\n");
    for part in parts {
        let _ = writeln!(
            text,
            "<label class=\"{part}\"><input type=\"checkbox\" id=\"show-{part}\" checked>{part}</label>"
        );
    }
    text.push_str("</div>\n");
    for part in &story.chapters {
        chapter(&mut text, story, part);
    }
    text.push_str("<footer>Told by <code>knarr journey</code>.</footer>\n</main>\n</html>\n");
    text
}

/// The rule by which a part's rows go when its box is not checked.
fn hiding(part: &str) -> String {
    format!("main:has(#show-{part}:not(:checked)) :is(.way, .lanes) .{part} {{ display: none; }}\n")
}

fn when(micros: u64) -> String {
    let at = i64::try_from(micros).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    at.map(|at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()).unwrap_or_default()
}

fn chapter(text: &mut String, story: &Story, chapter: &Chapter) {
    let kind = if chapter.outcome.after.is_none() && !chapter.outcome.words.is_empty() { "open" } else { "reached" };
    let _ = writeln!(
        text,
        "<section>\n<h2>{}: <b class=\"{kind}\">{}</b></h2>",
        escape(chapter.title),
        escape(&chapter.in_words())
    );
    phases(text, story, chapter);
    lanes(text, story, chapter);
    let _ = writeln!(text, "<h3>step by step</h3>\n<ol class=\"way\">\n{}", axis(chapter));
    for moment in &chapter.moments {
        row(text, story, chapter, moment);
    }
    text.push_str("</ol>\n</section>\n");
}

fn phases(text: &mut String, story: &Story, chapter: &Chapter) {
    let phases = chapter.phases();
    if phases.is_empty() {
        return;
    }
    let _ = writeln!(text, "<h3>{}</h3>\n<div class=\"phases\">", escape(&story.whose_time(chapter)));
    for phase in phases {
        let (name, took) = (phase.name, duration(phase.took));
        let _ = writeln!(
            text,
            "<div class=\"{}\" style=\"flex: {} 1 0\" title=\"{name}: {took}\"></div>",
            phase.part, phase.took
        );
    }
    text.push_str("</div>\n<ul class=\"spent\">\n");
    for phase in phases {
        let _ = writeln!(
            text,
            "<li class=\"phase-{part} {part}\"><span>{}</span><b>{}</b></li>",
            phase.name,
            duration(phase.took),
            part = phase.part
        );
    }
    text.push_str("</ul>\n");
}

/// The whole chapter at a glance: what happened to each object, one below the other.
fn lanes(text: &mut String, story: &Story, chapter: &Chapter) {
    let mut objects: Vec<&str> = Vec::new();
    for moment in &chapter.moments {
        if !objects.contains(&moment.object.as_str()) {
            objects.push(&moment.object);
        }
    }
    if objects.len() < 2 {
        return;
    }
    text.push_str("<h3>all objects</h3>\n<div class=\"lanes\">\n");
    for object in objects.iter().take(LANES) {
        let _ = write!(text, "<span>{}</span><div class=\"chart\">", escape(&story.short(object)));
        for moment in chapter.moments.iter().filter(|moment| moment.object == *object) {
            let title = format!("+{} {}", duration(moment.after), moment.what);
            text.push_str(&bar(chapter, moment, &title));
        }
        text.push_str("</div>\n");
    }
    text.push_str("</div>\n");
    if objects.len() > LANES {
        let _ = writeln!(text, "<p class=\"when\">and {} more</p>", objects.len() - LANES);
    }
}

/// A moment's place on the time axis.
fn bar(chapter: &Chapter, moment: &Moment, title: &str) -> String {
    let kind = if moment.took == 0 { " moment" } else { "" };
    format!(
        "<i class=\"{}{kind}\" style=\"left:{}%;width:{}%\" title=\"{}\"></i>",
        moment.part,
        percent(moment.after, chapter.took),
        percent(moment.took, chapter.took),
        escape(title)
    )
}

/// Times along the chart, a quarter of the chapter apart.
fn axis(chapter: &Chapter) -> String {
    let ticks: String =
        (0..=4).map(|quarter| format!("<span>{}</span>", duration(chapter.took * quarter / 4))).collect();
    format!("<li class=\"axis\"><div class=\"ticks\">{ticks}</div></li>")
}

fn row(text: &mut String, story: &Story, chapter: &Chapter, moment: &Moment) {
    let took = if moment.took == 0 { String::new() } else { duration(moment.took) };
    let mut more = String::new();
    if moment.repeated > 0 {
        let _ = write!(more, "<small>and {} more</small>", times(moment.repeated));
    }
    if moment.object != story.object {
        let _ = write!(more, "<small>{}</small>", escape(&story.short(&moment.object)));
    }
    if !moment.detail.is_empty() {
        let _ = write!(more, "<small class=\"detail\">{}</small>", escape(&moment.detail));
    }
    let _ = writeln!(
        text,
        "<li class=\"{part}\"><span class=\"time\">+{after}</span><span class=\"time took\">{took}</span>\
         <span class=\"chart\">{bar}</span>\
         <span class=\"part\">{part}</span><span class=\"what\">{what}{more}</span></li>",
        part = moment.part,
        after = duration(moment.after),
        bar = bar(chapter, moment, &moment.process),
        what = escape(&moment.what),
    );
}

fn percent(part: u64, whole: u64) -> String {
    let hundredths = part.saturating_mul(10_000) / whole.max(1);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// Names and messages come from outside.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;

    fn page_of(what: &str, process: &str) -> String {
        let moment = Moment {
            after: 50,
            took: 25,
            part: "kubelet",
            object: "pods/a/b".to_owned(),
            what: what.to_owned(),
            process: process.to_owned(),
            ..Moment::default()
        };
        let outcome = Outcome::default();
        let chapter = Chapter {
            title: "how it came to be",
            began: 1_700_000_000_000_000,
            took: 100,
            outcome,
            moments: vec![moment],
        };
        page(&Story { object: "pods/a/b".to_owned(), chapters: vec![chapter] })
    }

    #[test]
    fn what_comes_from_outside_stays_text() {
        let page = page_of("image <script>alert(1)</script>", "a\"b");
        assert!(!page.contains("<script>"));
        assert!(page.contains("image &lt;script&gt;"));
        assert!(page.contains("left:50.00%;width:25.00%\" title=\"a&quot;b\""));
        assert!(page.contains("2023-11-14 22:13:20 UTC"), "{page}");
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let page = page_of("created", "");
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
