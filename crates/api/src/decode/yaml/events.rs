//! A safe wrapper around the events of the YAML parser.

use super::scalar::Scalar;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use unsafe_libyaml::{
    YAML_ALIAS_EVENT, YAML_DOCUMENT_END_EVENT, YAML_MAPPING_END_EVENT, YAML_MAPPING_START_EVENT,
    YAML_PLAIN_SCALAR_STYLE, YAML_SCALAR_EVENT, YAML_SCANNER_ERROR, YAML_SEQUENCE_END_EVENT, YAML_SEQUENCE_START_EVENT,
    YAML_STREAM_END_EVENT, yaml_event_delete, yaml_event_t, yaml_parser_delete, yaml_parser_initialize,
    yaml_parser_parse, yaml_parser_set_input_string, yaml_parser_t,
};

/// Why a text is not YAML, without the prefix `yaml:`.
#[derive(Debug)]
pub(super) struct Failure(pub String);

pub(super) struct Event {
    /// Counted from one.
    pub line: usize,
    pub content: Content,
}

/// Anchors come with the node that they name.
pub(super) enum Content {
    Scalar(Scalar, Option<String>),
    Sequence(Option<String>),
    Mapping(Option<String>),
    Alias(String),
    /// A sequence or mapping ends.
    Close,
    DocumentEnd,
    /// The text ends.
    End,
    /// A stream or document starts.
    Boundary,
}

/// A parser over a text that it borrows.
pub(super) struct Events<'a> {
    // Boxed, as the parser points into itself.
    parser: Box<MaybeUninit<yaml_parser_t>>,
    text: PhantomData<&'a str>,
}

impl<'a> Events<'a> {
    /// Starts before the first event.
    pub fn new(text: &'a str) -> Result<Self, Failure> {
        let mut parser = Box::new(MaybeUninit::<yaml_parser_t>::uninit());
        // SAFETY: the memory is large enough for a parser and is only used as one after this succeeded.
        if unsafe { yaml_parser_initialize(parser.as_mut_ptr()) }.fail {
            return Err(Failure("not enough memory".to_owned()));
        }
        // SAFETY: the parser is initialized, and the text outlives it by the lifetime of `Events`.
        unsafe { yaml_parser_set_input_string(parser.as_mut_ptr(), text.as_ptr(), text.len() as u64) };
        Ok(Events { parser, text: PhantomData })
    }

    /// The next event, or the syntax error.
    pub fn next_event(&mut self) -> Result<Event, Failure> {
        let mut event = MaybeUninit::<yaml_event_t>::uninit();
        // SAFETY: the parser is initialized; the event is only read when this succeeds, which fills it.
        if unsafe { yaml_parser_parse(self.parser.as_mut_ptr(), event.as_mut_ptr()) }.fail {
            return Err(self.failure());
        }
        // SAFETY: parsing succeeded, so the event is initialized, and nothing in it is kept past its deletion.
        unsafe {
            let read = read_event(event.assume_init_ref());
            yaml_event_delete(event.as_mut_ptr());
            Ok(read)
        }
    }

    fn failure(&self) -> Failure {
        // SAFETY: the parser is initialized.
        let parser = unsafe { self.parser.assume_init_ref() };
        let line = match (parser.problem_mark.line, parser.context_mark.line) {
            (0, context) => context,
            (line, _) if parser.error == YAML_SCANNER_ERROR => line + 1,
            (line, _) => line,
        };
        let problem = if parser.problem.is_null() {
            "unknown problem parsing YAML content".into()
        } else {
            // SAFETY: the parser's problems are constant texts that end in zero.
            unsafe { CStr::from_ptr(parser.problem.cast()) }.to_string_lossy()
        };
        Failure(if line == 0 { problem.into_owned() } else { format!("line {line}: {problem}") })
    }
}

impl Drop for Events<'_> {
    fn drop(&mut self) {
        // SAFETY: the parser was initialized in `new` and is not used after this.
        unsafe { yaml_parser_delete(self.parser.as_mut_ptr()) };
    }
}

/// # Safety
/// The event must be initialized by the parser and not deleted yet.
unsafe fn read_event(event: &yaml_event_t) -> Event {
    let line = event.start_mark.line as usize + 1;
    // SAFETY: the type says which part of the union is set; its texts end in zero or have the length given.
    let content = unsafe {
        match event.type_ {
            YAML_SCALAR_EVENT => {
                let scalar = &event.data.scalar;
                let bytes = std::slice::from_raw_parts(scalar.value, scalar.length as usize);
                let tag = text(scalar.tag).map(|tag| match tag.strip_prefix("tag:yaml.org,2002:") {
                    Some(known) => format!("!!{known}"),
                    None => tag,
                });
                // The tag `!` means that the scalar is a string.
                let only_text = tag.as_deref() == Some("!");
                let scalar_read = Scalar {
                    text: String::from_utf8_lossy(bytes).into_owned(),
                    plain: scalar.style == YAML_PLAIN_SCALAR_STYLE && !only_text,
                    tag: tag.filter(|_| !only_text),
                };
                Content::Scalar(scalar_read, text(scalar.anchor))
            }
            YAML_SEQUENCE_START_EVENT => Content::Sequence(text(event.data.sequence_start.anchor)),
            YAML_MAPPING_START_EVENT => Content::Mapping(text(event.data.mapping_start.anchor)),
            YAML_ALIAS_EVENT => Content::Alias(text(event.data.alias.anchor).unwrap_or_default()),
            YAML_SEQUENCE_END_EVENT | YAML_MAPPING_END_EVENT => Content::Close,
            YAML_DOCUMENT_END_EVENT => Content::DocumentEnd,
            YAML_STREAM_END_EVENT => Content::End,
            _ => Content::Boundary,
        }
    };
    Event { line, content }
}

/// # Safety
/// The pointer must be null or lead to a text that ends in zero.
unsafe fn text(pointer: *const u8) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: not null, and ends in zero by the contract above.
    Some(unsafe { CStr::from_ptr(pointer.cast()) }.to_string_lossy().into_owned())
}
