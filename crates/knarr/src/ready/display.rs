//! Showing the start on a terminal; elsewhere one line in the log says it all.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::{Listener, Part};
use crate::service;

pub struct Display {
    is_terminal: bool,
    parts: Vec<Part>,
    /// What to do next, said on a terminal when all is ready.
    next: String,
}

impl Display {
    pub fn new(next: String) -> Self {
        Display { is_terminal: std::io::stdout().is_terminal(), parts: Vec::new(), next }
    }

    fn show(&self, text: &str) {
        let mut out = std::io::stdout();
        // A terminal that has gone away is no reason to stop.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Listener for Display {
    fn came(&mut self, part: Part, waiting: &[&'static str]) {
        self.parts.push(part);
        if !waiting.is_empty() {
            service::notify(&format!("STATUS=waiting for {}", waiting.join(", ")));
        }
        if self.is_terminal {
            // The line that says what is waited for is written over.
            let mut text = format!("\r\x1b[K  {:<15} {:>5.1} s\n", part.name, part.after.as_secs_f64());
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
            tracing::info!(parts = told(&self.parts), "ready after {:.2} s", took.as_secs_f64());
        }
    }
}

fn told(parts: &[Part]) -> String {
    let each: Vec<String> =
        parts.iter().map(|part| format!("{} {:.2} s", part.name, part.after.as_secs_f64())).collect();
    each.join(", ")
}
