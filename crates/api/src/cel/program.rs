//! Compiled expressions.

use super::ast::Node;
use super::check::check;
use super::error::{CompileError, EvaluateError, describe};
use super::estimate::estimate;
use super::evaluate::Evaluator;
use super::parser::parse;
use super::types::Type;
use super::value::Value;
use super::weight::weigh;
use crate::json_schema::JsonSchemaProps;

/// Types that are deeper than this count as equal.
const MAX_TYPE_DEPTH: usize = 100;

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    pub(super) root: Node,
    kind: Type,
}

/// A variable's name and type.
pub type Variable = (String, Type);

impl Program {
    /// Compiles an expression that may use these variables.
    pub fn compile(source: &str, variables: &[Variable]) -> Result<Self, CompileError> {
        let root = parse(source).map_err(|problem| describe(source, &[problem]))?;
        let (kind, problems) = check(&root, variables);
        // Types of variables are built from those of earlier variables, thousands of times.
        let kind = if kind.nests_at_most(MAX_TYPE_DEPTH) { kind } else { Type::Dyn };
        if problems.is_empty() { Ok(Program { root, kind }) } else { Err(describe(source, &problems)) }
    }

    /// The type of the expression.
    pub fn kind(&self) -> &Type {
        &self.kind
    }

    /// Whether the expression uses a variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.root.mentions(variable)
    }

    /// The fields of a variable that the expression selects by name.
    pub fn fields_of(&self, variable: &str) -> Vec<&str> {
        let mut found = Vec::new();
        self.root.fields_of(variable, &mut found);
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The maximum cost of the expression if `self` is a value of the schema.
    pub fn highest_cost(&self, props: &JsonSchemaProps) -> u64 {
        estimate(&self.root, props)
    }

    /// Evaluates the expression and returns its value and cost.
    pub fn evaluate<'a>(
        &'a self,
        variables: Vec<(&'a str, Value<'a>)>,
        cost_limit: u64,
    ) -> (Result<Value<'a>, EvaluateError>, u64) {
        let mut evaluator = Evaluator::new(variables, cost_limit);
        // Other expressions, messages and patches are built from results.
        let outcome = evaluator.evaluate(&self.root).and_then(|value| match weigh(&value) {
            Some(_) => Ok(value),
            None => Err(EvaluateError::TooExpensive),
        });
        (outcome, evaluator.meter.spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// Evaluates an expression without variables; returns its value or the error as text.
    fn shown(source: &str) -> String {
        let program = match Program::compile(source, &[]) {
            Ok(program) => program,
            Err(error) => return error.to_string().lines().next().unwrap_or_default().to_owned(),
        };
        let (outcome, _) = program.evaluate(Vec::new(), 1_000_000);
        outcome.map_or_else(|error| format!("error: {error}"), |value| super::super::functions::format_value(&value))
    }

    #[test]
    fn expressions_come_to_their_values() {
        for (source, expected) in [
            ("1 + 2 * 3", "7"),
            ("-5 % 3", "-2"),
            ("(1 + 2) * 3 == 9 && !(2 > 3)", "true"),
            ("1 / 0", "error: division by zero"),
            ("9223372036854775807 + 1", "error: integer overflow"),
            ("true || 1 / 0 == 1", "true"),
            ("1 / 0 == 1 || true", "true"),
            ("1 / 0 == 1 && true", "error: division by zero"),
            ("1 < 2.5 && 3u > 2", "true"),
            ("true ? 'a' : 'b'", "a"),
            ("[1, 2, 3].all(x, x > 0)", "true"),
            ("[1, 2, 3].exists(x, x > 2)", "true"),
            ("[1, 2, 3].exists_one(x, x > 1)", "false"),
            ("[1, 2, 3].map(x, x * 2)", "[2, 4, 6]"),
            ("[1, 2, 3].map(x, x > 1, x * 2)", "[4, 6]"),
            ("[1, 2, 3].filter(x, x != 2)", "[1, 3]"),
            ("{'a': 1, 'b': 2}.all(k, k < 'c')", "true"),
            ("[5, 6].all(i, v, v == i + 5)", "true"),
            ("[1, 2].transformList(i, v, v * 10 + i)", "[10, 21]"),
            ("{'a': 1}.transformMap(k, v, v + 1)", "{a: 2}"),
            ("2 in [1, 2] && 'a' in {'a': 1}", "true"),
            ("[1, 2][5]", "error: index out of bounds: 5"),
            ("{'a': 1}['b']", "error: no such key: b"),
            ("has({'a': 1}.a) && !has({'a': 1}.b)", "true"),
            ("{'a': 1}.?b.orValue(7)", "7"),
            ("optional.of(3).optMap(x, x + 1).value()", "4"),
            ("[?optional.none(), ?optional.of(1)]", "[1]"),
            ("cel.bind(x, 3, x * x)", "9"),
            ("'hello'.contains('ell') && 'hello'.startsWith('he') && 'hello'.endsWith('lo')", "true"),
            ("'foo123'.matches('^[a-z]+[0-9]+$')", "true"),
            ("'a,b,c'.split(',').join('-')", "a-b-c"),
            ("'abc'.substring(1) + 'abc'.upperAscii() + 'abc'.charAt(1)", "bcABCb"),
            ("'tacocat'.lastIndexOf('c')", "4"),
            ("'%s has %d items, %.2f%%'.format(['x', 3, 1.5])", "x has 3 items, 1.50%"),
            ("'abc 12 de 3'.findAll('[0-9]+')", "[12, 3]"),
            ("size('été') == 3 && [1].size() == 1", "true"),
            ("int('42') + int(2.9)", "44"),
            ("string(1.5) + string(true)", "1.5true"),
            ("duration('1h30m') > duration('89m')", "true"),
            ("string(duration('1h30m'))", "5400s"),
            ("timestamp('2026-01-02T03:04:05Z').getHours()", "3"),
            ("timestamp('2026-01-02T03:04:05Z') + duration('1h') == timestamp('2026-01-02T04:04:05Z')", "true"),
            ("[1, 2, 3].isSorted() && [1, 2].sum() == 3 && [3, 1].min() == 1", "true"),
            ("[3, 1, 2].sort()", "[1, 2, 3]"),
            ("sets.contains([1, 2, 3], [2]) && sets.equivalent([1, 2], [2, 1, 1])", "true"),
            ("quantity('1Gi').isGreaterThan(quantity('1G'))", "true"),
            ("quantity('1').add(quantity('2')).asInteger()", "3"),
            ("url('https://user@example.com:80/p?a=b').getHostname()", "example.com"),
            ("isURL('no')", "false"),
            ("ip('127.0.0.1').isLoopback() && cidr('10.0.0.0/8').containsIP('10.1.2.3')", "true"),
            ("ip.isCanonical('::1')", "true"),
            ("semver('1.2.3').isLessThan(semver('1.10.0'))", "true"),
            ("!format.dns1123Label().validate('my-name').hasValue()", "true"),
            ("type(1) == int", "true"),
            ("b'abc' == bytes('abc')", "true"),
        ] {
            assert_eq!(shown(source), expected, "{source}");
        }
    }

    #[test]
    fn expressions_that_make_no_sense_are_refused() {
        for (source, expected) in [
            ("self = 42", "ERROR: <input>:1:6: Syntax error: mismatched input '=' expecting <EOF>"),
            (
                "1 +",
                "ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', \
                'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ),
            ("nope", "ERROR: <input>:1:1: undeclared reference to 'nope' (in container '')"),
            ("fly(1)", "ERROR: <input>:1:4: undeclared reference to 'fly' (in container '')"),
            ("1 + 'a'", "ERROR: <input>:1:3: found no matching overload for '_+_' applied to '(int, string)'"),
            ("1 == 'a'", "ERROR: <input>:1:3: found no matching overload for '_==_' applied to '(int, string)'"),
            (
                "'a'.startsWith(1)",
                "ERROR: <input>:1:15: found no matching overload for 'startsWith' applied to 'string.(int)'",
            ),
            ("[1, 'a']", "ERROR: <input>:1:5: expected type 'int' but found 'string'"),
            (
                "1.all(x, true)",
                "ERROR: <input>:1:1: expression of type 'int' cannot be range of a comprehension (must be \
                list, map, or dynamic)",
            ),
        ] {
            assert_eq!(shown(source), expected, "{source}");
        }
    }

    #[test]
    fn expressions_that_nest_too_deep_are_refused() {
        let many = 20_000;
        for source in [
            format!("{}1{}", "(".repeat(many), ")".repeat(many)),
            format!("{}1{}", "[".repeat(many), "]".repeat(many)),
            format!("{}1{}", "{1:".repeat(many), "}".repeat(many)),
            format!("1{}", " + 1".repeat(many)),
            format!("1{} == 1", " * 1 + 1".repeat(many)),
            format!("{{}}{}", ".a".repeat(many)),
            format!("[1]{}", "[0]".repeat(many)),
            format!("'a'{}", ".trim()".repeat(many)),
            format!("{}2", "true ? 1 : ".repeat(many)),
            format!("{}1{}", "size(".repeat(many), ")".repeat(many)),
            format!("{}1{}", "cel.bind(x, 1, ".repeat(many), ")".repeat(many)),
            format!("[1]{}", ".map(x, x)".repeat(many)),
            (0..40).fold("1".to_owned(), |source, _| format!("({source}{})", " + 1".repeat(40))),
        ] {
            let found = shown(&source);
            assert!(found.contains("expression recursion limit exceeded: 250"), "{found:.200}");
        }
    }

    #[test]
    fn expressions_of_many_operands_and_levels_are_evaluated() {
        for (source, expected) in [
            (format!("true{}", " && true".repeat(5_000)), "true"),
            (format!("false{} || true", " || false".repeat(5_000)), "true"),
            (format!("true{} || false && true", " && 1 == 1".repeat(100)), "true"),
            (format!("{}1{} == 1", "(".repeat(90), ")".repeat(90)), "true"),
            (format!("1{}", " + 1".repeat(240)), "241"),
            (format!("{}1{}.size()", "[".repeat(90), "]".repeat(90)), "1"),
            (format!("{0}1{1} == {0}1{1}", "[".repeat(90), "]".repeat(90)), "true"),
        ] {
            assert_eq!(shown(&source), expected, "{source:.60}");
        }
    }

    #[test]
    fn types_do_not_nest_without_end() {
        let compile =
            |kind: Type| Program::compile("[x]", &[("x".to_owned(), kind)]).expect("a program").kind().clone();
        assert_eq!(compile(Type::Int), Type::list(Type::Int));
        let deep = (0..MAX_TYPE_DEPTH).fold(Type::Int, |kind, _| compile(kind));
        assert!(deep.nests_at_most(MAX_TYPE_DEPTH) && deep != Type::Dyn);
        assert_eq!(compile(deep), Type::Dyn);
    }

    /// Small expressions with huge values.
    #[test]
    fn no_expression_fills_memory_or_runs_without_end() {
        let doubled = |first: &str, step: &str, last: &str| {
            let binds: String =
                (0..60).map(|at| format!("cel.bind(v{}, {}, ", at + 1, step.replace('_', &format!("v{at}")))).collect();
            format!("cel.bind(v0, {first}, {binds}{last}{})", ")".repeat(60))
        };
        let long = doubled("'0123456789'", "_ + _", "v60");
        for source in [
            "lists.range(9223372036854775807).size() > 0".to_owned(),
            "lists.range(1000000000).size() > 0".to_owned(),
            long,
            doubled("[1]", "_ + _", "v60.size()"),
            doubled("[1]", "[_, _]", "v60 == v60"),
            doubled("[1]", "[_, _]", "v60 in [v60]"),
            doubled("[1]", "[_, _]", "v60.flatten(60).size()"),
            doubled("[1]", "[_, _]", "v60.flatten(60).indexOf(1)"),
            doubled("[1]", "[_, _]", "'%s'.format([v60])"),
            doubled("[1]", "[_, _]", "[v60, v60].distinct()"),
            doubled("[1]", "[_, _]", "sets.contains([v60], [v60])"),
            doubled("[1]", "[_, _]", "v60"),
            doubled("{'a': 1}", "{'a': _, 'b': _}", "v60 != v60"),
            doubled("'aa'", "_.replace('a', _)", "v60.size()"),
            doubled("'aa'", "[_, _, _].join(_)", "v60.size()"),
            "lists.range(100000).transformMapEntry(i, v, {v: v}).size()".to_owned(),
            // Each lookup searches a map that the expression built.
            "cel.bind(m, lists.range(900).transformMapEntry(i, v, {v: v}), lists.range(100000).all(i, m[899] == 899))"
                .to_owned(),
        ] {
            let found = shown(&source);
            assert_eq!(found, "error: operation cancelled: actual cost limit exceeded", "{source:.100}");
        }
        // Comparisons end with the lesser value, and do not walk over the other.
        for last in ["dyn(v60) == 1", "dyn(1) == v60", "dyn(v60) in [1, 2]", "dyn(1) in [v60]"] {
            assert_eq!(shown(&doubled("[1]", "[_, _]", last)), "false", "{last}");
        }
        for (source, expected) in [
            ("'%.100000000f'.format([1.5])", "error: precision 100000000 is too large"),
            ("'%.100000000e'.format([1.5])", "error: precision 100000000 is too large"),
            ("['a', 'b'].sum()", "ERROR"),
            ("-duration('-9223372036854775808s')", "error: "),
        ] {
            let found = shown(source);
            assert!(found.starts_with(expected), "{source}: {found}");
        }
    }

    #[test]
    fn objects_are_typed_by_their_schema() {
        let props = JsonSchemaProps::read(&json!({"type": "object", "properties": {"a-b": {"type": "integer"},
            "when": {"type": "string", "format": "date-time"}, "list": {"type": "array", "x-kubernetes-list-type": "set",
                "items": {"type": "string"}}, "port": {"x-kubernetes-int-or-string": true},
            "ratio": {"type": "number"}, "map": {"type": "object", "additionalProperties": {"type": "integer"}}}}));
        let variables = [("self".to_owned(), Type::of_props(&props, false).expect("type"))];
        let object = json!({"a-b": 3, "when": "2026-01-02T03:04:05Z", "list": ["x", "y"], "port": "http", "ratio": 2,
            "map": {"k-1": 4}});
        for (source, expected) in [
            ("self.a__dash__b == 3", Ok(true)),
            ("self.when < timestamp('2027-01-01T00:00:00Z')", Ok(true)),
            ("self.list == ['y', 'x']", Ok(true)),
            ("type(self.port) == string ? self.port == 'http' : self.port > 0", Ok(true)),
            ("self.ratio == 2.0", Ok(true)),
            ("self.map['k-1'] == 4 && self.map.all(k, self.map[k] > 3)", Ok(true)),
            ("self.z == 100", Err("ERROR: <input>:1:5: undefined field 'z'\n | self.z == 100\n | ....^")),
        ] {
            let program = match Program::compile(source, &variables) {
                Ok(program) => program,
                Err(error) => {
                    assert_eq!(Err(error.to_string().as_str()), expected, "{source}");
                    continue;
                }
            };
            let self_value = Value::of_json(&object, Some(&props));
            let (outcome, _) = program.evaluate(vec![("self", self_value)], 1_000_000);
            assert!(matches!(outcome, Ok(Value::Bool(flag)) if Ok(flag) == expected), "{source}: {outcome:?}");
        }
    }

    #[test]
    fn objects_and_patches_are_made() {
        let variables = [
            ("Object".to_owned(), Type::Message("Object".into())),
            ("JSONPatch".to_owned(), Type::Message("JSONPatch".into())),
            ("object".to_owned(), Type::Dyn),
        ];
        let object = json!({"spec": {"replicas": 3}, "n": null});
        for (source, expected) in [
            (
                "Object{spec: Object.spec{replicas: object.spec.replicas + 1, ?no: object.?none}}",
                Ok(json!({"spec": {"replicas": 4}})),
            ),
            (
                "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b'), value: {'x': [1.5]}}]",
                Ok(json!([{"op": "add", "path": "/metadata/labels/a~1b", "value": {"x": [1.5]}}])),
            ),
            ("has(Object{a: 1}.a) ? Object{} : Object{b: 1}", Ok(json!({}))),
            ("JSONPatch{op: 1}", Err("expected type of field 'op' is 'string' but provided type is 'int'")),
            ("JSONPatch{what: 1}", Err("undefined field 'what'")),
            ("Pod{}", Err("undeclared reference to 'Pod' (in container '')")),
        ] {
            match Program::compile(source, &variables) {
                Ok(program) => {
                    let (outcome, _) = program.evaluate(vec![("object", Value::of_json(&object, None))], 10_000);
                    let made = outcome.and_then(|value| value.to_json());
                    assert_eq!(made.as_ref().ok(), expected.as_ref().ok(), "{source}: {made:?}");
                }
                Err(error) => assert!(error.to_string().contains(expected.expect_err(source)), "{source}: {error}"),
            }
        }
        let program = Program::compile("Object{spec: Object.other{}}", &variables).expect("program");
        let (Ok(Value::Message(message)), _) = program.evaluate(Vec::new(), 1_000) else { panic!("no message") };
        assert!(message.misnamed().is_some_and(|wrong| wrong.contains("expected \"Object.spec\"")));
    }

    #[derive(Debug)]
    struct OnlyPods;

    impl crate::cel::Authorize for OnlyPods {
        fn decide(&self, check: &crate::cel::AccessCheck) -> Result<(bool, String), String> {
            Ok((check.resource == "pods" && check.verb == "get", format!("asked for {}", check.namespace)))
        }

        fn of_request(&self) -> crate::cel::AccessCheck {
            crate::cel::AccessCheck { resource: "pods".to_owned(), ..Default::default() }
        }
    }

    #[test]
    fn the_authorizer_can_be_asked() {
        let variables = [("authorizer".to_owned(), Type::Opaque("kubernetes.authorization.Authorizer"))];
        for (source, expected) in [
            ("authorizer.group('').resource('pods').namespace('a').check('get').allowed()", "true"),
            ("authorizer.group('').resource('pods').namespace('a').check('get').reason()", "asked for a"),
            ("authorizer.serviceAccount('a', 'b').group('').resource('nodes').check('get').allowed()", "false"),
            ("authorizer.requestResource.check('get').allowed()", "true"),
            ("authorizer.path('/healthz').check('get').errored()", "false"),
        ] {
            let program = Program::compile(source, &variables).expect(source);
            let authorizer = Value::Authorizer(std::sync::Arc::new(crate::cel::AuthorizerValue::new(&OnlyPods)));
            let (outcome, _) = program.evaluate(vec![("authorizer", authorizer)], 1_000_000);
            assert_eq!(super::super::functions::format_value(&outcome.expect(source)), expected, "{source}");
        }
    }

    #[test]
    fn costs_are_limited() {
        let numbers: Vec<i64> = vec![1; 725];
        let object = json!({"list": numbers});
        let variables = [("self".to_owned(), Type::Dyn)];
        let program = Program::compile("self.list.all(x, self.list.all(y, y == x))", &variables).expect("program");
        let (outcome, _) = program.evaluate(vec![("self", Value::of_json(&object, None))], 1_000_000);
        assert_eq!(outcome.expect_err("too expensive"), EvaluateError::TooExpensive);
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_language(text in "[a-z0-9 .,:?!()\\[\\]{}'\"+*/%<>=&|-]{0,60}") {
            if let Ok(program) = Program::compile(&text, &[("self".to_owned(), Type::Dyn)]) {
                let object = json!({"a": [1, "x"], "b": {"c": null}});
                let _ = program.evaluate(vec![("self", Value::of_json(&object, None))], 10_000);
            }
        }
    }
}
