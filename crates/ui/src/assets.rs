//! The files of the page, compiled into the program. A debug build reads them from the source directory where it exists, so
//! that a change shows when the page is loaded again.

use std::borrow::Cow;

/// A file of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asset {
    pub content_type: &'static str,
    pub content: Cow<'static, [u8]>,
}

/// Only files of this server run, no text of the cluster can become a script, and no other page can embed this one.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

macro_rules! assets {
    ($($path:literal: $content_type:expr,)*) => {
        /// The file at a path below `/ui/`.
        pub fn asset(path: &str) -> Option<Asset> {
            match path {
                $($path => Some(Asset {
                    content_type: $content_type,
                    content: current($path, include_bytes!(concat!("../assets/", $path))),
                }),)*
                _ => None,
            }
        }

        #[cfg(test)]
        const PATHS: &[&str] = &[$($path),*];
    };
}

/// The content of a file: as compiled, or as the source directory has it now.
fn current(path: &str, compiled: &'static [u8]) -> Cow<'static, [u8]> {
    if cfg!(debug_assertions)
        && let Ok(content) = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/").to_owned() + path)
    {
        return Cow::Owned(content);
    }
    Cow::Borrowed(compiled)
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

assets! {
    "index.html": HTML,
    "style.css": CSS,
    "icon.svg": SVG,
    "main.js": JAVASCRIPT,
    "api.js": JAVASCRIPT,
    "dom.js": JAVASCRIPT,
    "kinds.js": JAVASCRIPT,
    "shape.js": JAVASCRIPT,
    "grid.js": JAVASCRIPT,
    "deletion.js": JAVASCRIPT,
    "diff.js": JAVASCRIPT,
    "format.js": JAVASCRIPT,
    "terminal.js": JAVASCRIPT,
    "actions.js": JAVASCRIPT,
    "change.js": JAVASCRIPT,
    "chart.js": JAVASCRIPT,
    "relations.js": JAVASCRIPT,
    "revisions.js": JAVASCRIPT,
    "rollout.js": JAVASCRIPT,
    "usage.js": JAVASCRIPT,
    "workload.js": JAVASCRIPT,
    "page-problems.js": JAVASCRIPT,
    "page-cluster.js": JAVASCRIPT,
    "page-list.js": JAVASCRIPT,
    "page-object.js": JAVASCRIPT,
    "page-form.js": JAVASCRIPT,
    "page-network.js": JAVASCRIPT,
    "page-storage.js": JAVASCRIPT,
    "page-journey.js": JAVASCRIPT,
    "page-logs.js": JAVASCRIPT,
    "page-shell.js": JAVASCRIPT,
    "page-access.js": JAVASCRIPT,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_served_under_its_name() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
        let mut files: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let mut paths = PATHS.to_vec();
        paths.sort_unstable();
        assert_eq!(files, paths);
        assert_eq!(asset("../Cargo.toml"), None);
    }

    #[test]
    fn scripts_never_parse_text_as_markup_or_code() {
        for path in PATHS.iter().filter(|path| path.ends_with(".js")) {
            let text = String::from_utf8(asset(path).unwrap().content.to_vec()).unwrap();
            for dangerous in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
            {
                assert!(!text.contains(dangerous), "{path} uses {dangerous}");
            }
        }
    }

    #[test]
    fn no_file_refers_to_another_server() {
        for path in PATHS {
            let text = String::from_utf8(asset(path).unwrap().content.to_vec()).unwrap();
            let text = text.replace("http://www.w3.org/", "");
            assert!(!text.contains("https://") && !text.contains("http://"), "{path}");
        }
    }
}
