//! A story as one page that needs nothing else: a table whose rows carry their place on a time axis.

use std::fmt::Write as _;

use crate::story::{Chapter, Moment, Story};
use crate::words::duration;

const STYLE: &str = "
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 15%, transparent); }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; } h2 small { font-weight: normal; opacity: .7; }
table { border-collapse: collapse; width: 100%; } td { padding: .15rem .5rem; border-top: 1px solid var(--line); vertical-align: top; }
td.time { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; opacity: .75; }
td.chart { width: 40%; } .axis { position: relative; height: 1.2em; }
.bar { position: absolute; top: .2em; height: .8em; min-width: 3px; border-radius: 2px; background: var(--part); }
.object { opacity: .6; font-size: .85em; } .part { color: var(--part); font-weight: 600; white-space: nowrap; }
.api { --part: #3b6fd4; } .controllers { --part: #9a4fc0; } .scheduler { --part: #c07a1c; } .kubelet { --part: #2f8f4e; }
.proxy, .dns, .other { --part: #178a99; }";

/// The whole page.
pub fn page(story: &Story) -> String {
    let title = escape(&story.object);
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>The journey of {title}</title>\n<style>{STYLE}\n</style>\n<h1>The journey of {title}</h1>\n"
    );
    for part in &story.chapters {
        chapter(&mut text, story, part);
    }
    text.push_str("</html>\n");
    text
}

fn chapter(text: &mut String, story: &Story, chapter: &Chapter) {
    let ready = chapter.ready.map(|ready| format!("ready after {}, ", duration(ready))).unwrap_or_default();
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "<h2>{} <small>{ready}{} in all</small></h2>\n<table>\n",
        escape(chapter.title),
        duration(chapter.took)
    );
    for moment in &chapter.moments {
        row(text, story, chapter, moment);
    }
    text.push_str("</table>\n");
}

fn row(text: &mut String, story: &Story, chapter: &Chapter, moment: &Moment) {
    let took = if moment.took == 0 { String::new() } else { duration(moment.took) };
    let times = if moment.times > 1 { format!(" ×{}", moment.times) } else { String::new() };
    let object = if moment.object == story.object {
        String::new()
    } else {
        format!(" <span class=\"object\">{}</span>", escape(&moment.object))
    };
    let _ = writeln!(
        text,
        "<tr class=\"{part}\"><td class=\"time\">+{after}<td class=\"time\">{took}<td class=\"chart\"><div class=\"axis\">\
         <div class=\"bar\" style=\"left:{left}%;width:{width}%\" title=\"{process}\"></div></div>\
         <td class=\"part\">{part}<td>{what}{times}{object}",
        part = moment.part,
        after = duration(moment.after),
        left = percent(moment.after, chapter.took),
        width = percent(moment.took, chapter.took),
        process = escape(&moment.process),
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

    #[test]
    fn what_comes_from_outside_stays_text() {
        let moment = Moment {
            after: 50,
            took: 25,
            part: "kubelet",
            object: "pods/a/b".to_owned(),
            what: "image <script>alert(1)</script>".to_owned(),
            process: "a\"b".to_owned(),
            times: 1,
        };
        let chapter = Chapter { title: "how it came to be", began: 0, took: 100, ready: None, moments: vec![moment] };
        let page = page(&Story { object: "pods/a/b".to_owned(), chapters: vec![chapter] });
        assert!(!page.contains("<script>"));
        assert!(page.contains("image &lt;script&gt;"));
        assert!(page.contains("left:50.00%;width:25.00%\" title=\"a&quot;b\""));
    }
}
