//! Renders a timeline as one self-contained HTML page: no script, no font, no other file. Each step is a row with its
//! position on the time axis; checkboxes at the top select the components.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use jiff::Timestamp;

use crate::message::duration;
use crate::text::times;
use crate::timeline::{Entry, Section, Timeline};

/// The maximum number of objects with their own lane.
const MAX_LANES: usize = 40;

const STYLE: &str = include_str!("page.css");

/// The whole page.
pub fn render_html(timeline: &Timeline) -> String {
    let title = escape(&timeline.object);
    let components: BTreeSet<&str> =
        timeline.sections.iter().flat_map(|section| &section.entries).map(|entry| entry.component).collect();
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>The journey of {title}</title>\n<style>\n{STYLE}{}</style>\n<main>\n<h1>{title}</h1>\n",
        components.iter().map(|component| hiding_rule(component)).collect::<String>()
    );
    if let Some(first) = timeline.sections.first() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "<p class=\"when\">{}</p>", when(first.started));
    }
    text.push_str("<div class=\"legend\">\n");
    for component in components {
        let _ = writeln!(
            text,
            "<label class=\"{component}\"><input type=\"checkbox\" id=\"show-{component}\" checked>{component}</label>"
        );
    }
    text.push_str("</div>\n");
    for section in &timeline.sections {
        render_section(&mut text, timeline, section);
    }
    text.push_str("<footer>Created by <code>knarr journey</code>.</footer>\n</main>\n</html>\n");
    text
}

/// The CSS rule that hides a component's rows when its checkbox is not checked.
fn hiding_rule(component: &str) -> String {
    format!("main:has(#show-{component}:not(:checked)) :is(.way, .lanes) .{component} {{ display: none; }}\n")
}

fn when(micros: u64) -> String {
    let at = i64::try_from(micros).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    at.map(|at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()).unwrap_or_default()
}

fn render_section(text: &mut String, timeline: &Timeline, section: &Section) {
    let kind = if section.outcome.after.is_none() && !section.outcome.message.is_empty() { "open" } else { "reached" };
    let _ = writeln!(
        text,
        "<section>\n<h2>{}: <b class=\"{kind}\">{}</b></h2>",
        escape(section.title),
        escape(&section.summary())
    );
    phases(text, timeline, section);
    lanes(text, timeline, section);
    let _ = writeln!(text, "<h3>step by step</h3>\n<ol class=\"way\">\n{}", axis(section));
    for entry in &section.entries {
        row(text, timeline, section, entry);
    }
    text.push_str("</ol>\n</section>\n");
}

fn phases(text: &mut String, timeline: &Timeline, section: &Section) {
    let phases = section.phases();
    if phases.is_empty() {
        return;
    }
    let _ = writeln!(text, "<h3>{}</h3>\n<div class=\"phases\">", escape(&timeline.phases_heading(section)));
    for phase in phases {
        let (name, took) = (phase.name, duration(phase.took));
        let _ = writeln!(
            text,
            "<div class=\"{}\" style=\"flex: {} 1 0\" title=\"{name}: {took}\"></div>",
            phase.component, phase.took
        );
    }
    text.push_str("</div>\n<ul class=\"spent\">\n");
    for phase in phases {
        let _ = writeln!(
            text,
            "<li class=\"phase-{component} {component}\"><span>{}</span><b>{}</b></li>",
            phase.name,
            duration(phase.took),
            component = phase.component
        );
    }
    text.push_str("</ul>\n");
}

/// An overview of the section with one lane per object.
fn lanes(text: &mut String, timeline: &Timeline, section: &Section) {
    let mut objects: Vec<&str> = Vec::new();
    for entry in &section.entries {
        if !objects.contains(&entry.object.as_str()) {
            objects.push(&entry.object);
        }
    }
    if objects.len() < 2 {
        return;
    }
    text.push_str("<h3>all objects</h3>\n<div class=\"lanes\">\n");
    for object in objects.iter().take(MAX_LANES) {
        let _ = write!(text, "<span>{}</span><div class=\"chart\">", escape(&timeline.short(object)));
        for entry in section.entries.iter().filter(|entry| entry.object == *object) {
            let title = format!("+{} {}", duration(entry.after), entry.message);
            text.push_str(&bar(section, entry, &title));
        }
        text.push_str("</div>\n");
    }
    text.push_str("</div>\n");
    if objects.len() > MAX_LANES {
        let _ = writeln!(text, "<p class=\"when\">and {} more</p>", objects.len() - MAX_LANES);
    }
}

/// The bar of an entry on the time axis.
fn bar(section: &Section, entry: &Entry, title: &str) -> String {
    let kind = if entry.took == 0 { " entry" } else { "" };
    format!(
        "<i class=\"{}{kind}\" style=\"left:{}%;width:{}%\" title=\"{}\"></i>",
        entry.component,
        percent(entry.after, section.took),
        percent(entry.took, section.took),
        escape(title)
    )
}

/// The ticks of the time axis at quarters of the section.
fn axis(section: &Section) -> String {
    let ticks: String =
        (0..=4).map(|quarter| format!("<span>{}</span>", duration(section.took * quarter / 4))).collect();
    format!("<li class=\"axis\"><div class=\"ticks\">{ticks}</div></li>")
}

fn row(text: &mut String, timeline: &Timeline, section: &Section, entry: &Entry) {
    let took = if entry.took == 0 { String::new() } else { duration(entry.took) };
    let mut more = String::new();
    if entry.repeated > 0 {
        let _ = write!(more, "<small>and {} more</small>", times(entry.repeated));
    }
    if entry.object != timeline.object {
        let _ = write!(more, "<small>{}</small>", escape(&timeline.short(&entry.object)));
    }
    if !entry.detail.is_empty() {
        let _ = write!(more, "<small class=\"detail\">{}</small>", escape(&entry.detail));
    }
    let _ = writeln!(
        text,
        "<li class=\"{component}\"><span class=\"time\">+{after}</span><span class=\"time took\">{took}</span>\
         <span class=\"chart\">{bar}</span>\
         <span class=\"part\">{component}</span><span class=\"what\">{message}{more}</span></li>",
        component = entry.component,
        after = duration(entry.after),
        bar = bar(section, entry, &entry.process),
        message = escape(&entry.message),
    );
}

fn percent(share: u64, whole: u64) -> String {
    let hundredths = share.saturating_mul(10_000) / whole.max(1);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// Escapes names and messages, which are untrusted.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;

    fn page_of(message: &str, process: &str) -> String {
        let entry = Entry {
            after: 50,
            took: 25,
            component: "kubelet",
            object: "pods/a/b".to_owned(),
            message: message.to_owned(),
            process: process.to_owned(),
            ..Entry::default()
        };
        let outcome = Outcome::default();
        let section =
            Section { title: "creation", started: 1_700_000_000_000_000, took: 100, outcome, entries: vec![entry] };
        render_html(&Timeline { object: "pods/a/b".to_owned(), sections: vec![section] })
    }

    #[test]
    fn untrusted_text_is_escaped() {
        let page = page_of("image <script>alert(1)</script>", "a\"b");
        assert!(!page.contains("<script>"));
        assert!(page.contains("image &lt;script&gt;"));
        assert!(page.contains("left:50.00%;width:25.00%\" title=\"a&quot;b\""));
        assert!(page.contains("2023-11-14 22:13:20 UTC"), "{page}");
    }

    #[test]
    fn the_page_is_self_contained() {
        let page = page_of("created", "");
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
