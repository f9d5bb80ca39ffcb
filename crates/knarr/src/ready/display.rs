//! Shows the progress of the startup on a terminal; elsewhere it is logged in one line.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::{ProgressListener, ReadyComponent};
use crate::service;

pub struct Display {
    is_terminal: bool,
    components: Vec<ReadyComponent>,
    /// Next steps, printed on a terminal when everything is ready.
    next: String,
}

impl Display {
    pub fn new(next: String) -> Self {
        Display { is_terminal: std::io::stdout().is_terminal(), components: Vec::new(), next }
    }

    fn show(&self, text: &str) {
        let mut out = std::io::stdout();
        // A closed terminal is no reason to stop.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl ProgressListener for Display {
    fn ready(&mut self, component: ReadyComponent, waiting: &[&'static str]) {
        self.components.push(component);
        if !waiting.is_empty() {
            service::notify(&format!("STATUS=waiting for {}", waiting.join(", ")));
        }
        if self.is_terminal {
            // Overwrites the line with the pending components.
            let mut text = format!("\r\x1b[K  {:<15} {:>5.1} s\n", component.name, component.after.as_secs_f64());
            if !waiting.is_empty() {
                let _ = write!(text, "  … {}", waiting.join(", "));
            }
            self.show(&text);
        }
    }

    fn done(&mut self, took: Duration) {
        service::notify("READY=1\nSTATUS=ready");
        if self.is_terminal {
            self.show(&format!("\nReady after {:.1} s.\n\n{}\n", took.as_secs_f64(), self.next));
        } else {
            tracing::info!(components = reported(&self.components), "ready after {:.2} s", took.as_secs_f64());
        }
    }
}

fn reported(components: &[ReadyComponent]) -> String {
    let each: Vec<String> = components
        .iter()
        .map(|component| format!("{} {:.2} s", component.name, component.after.as_secs_f64()))
        .collect();
    each.join(", ")
}
