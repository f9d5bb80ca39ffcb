//! A CEL expression: compiled, and evaluated within a cost limit.
#![no_main]

use knarr_api::cel::{Program, Type, Value};

libfuzzer_sys::fuzz_target!(|input: &str| {
    let variables = [("self".to_owned(), Type::Dyn), ("oldSelf".to_owned(), Type::Dyn)];
    let Ok(program) = Program::compile(input, &variables) else { return };
    let pod = knarr_fuzz::pod();
    let bound = vec![("self", Value::of_json(&pod, None)), ("oldSelf", Value::of_json(&pod["spec"], None))];
    let _ = program.evaluate(bound, 100_000);
});
