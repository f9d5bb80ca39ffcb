//! Compilation checks of the CEL expressions in policies and match conditions.

use knarr_api::cel::{CompileError, Program, Type, Variable};
use knarr_api::field::{Errors, Path};

use crate::common::expressions::object;

/// The variables that an expression may use.
#[derive(Clone)]
pub struct Scope {
    variables: Vec<Variable>,
    /// The variables that the policy defines, in order.
    defined: Vec<(String, Type)>,
    composes: bool,
}

impl Scope {
    /// Returns the scope of expressions in a policy, with `params` if it has parameters.
    pub fn new(has_parameters: bool) -> Self {
        let mut variables = vec![
            ("object".to_owned(), Type::Dyn),
            ("oldObject".to_owned(), Type::Dyn),
            ("namespaceObject".to_owned(), namespace_type()),
            ("request".to_owned(), request_type()),
        ];
        if has_parameters {
            variables.push(("params".to_owned(), Type::Dyn));
        }
        variables.push(("authorizer".to_owned(), Type::Opaque("kubernetes.authorization.Authorizer")));
        Scope { variables, defined: Vec::new(), composes: false }
    }

    /// The same for message expressions, which may not use the authorizer.
    pub fn without_authorizer(mut self) -> Self {
        self.variables.retain(|(name, _)| name != "authorizer");
        self
    }

    /// The same with the types that mutations create: objects and JSON patches.
    pub fn mutating(mut self) -> Self {
        for name in ["Object", "JSONPatch"] {
            self.variables.push((name.to_owned(), Type::Message(name.into())));
        }
        self
    }

    /// The same with a known type of the objects.
    pub fn of_objects(mut self, object: &Type, parameter: Option<&Type>) -> Self {
        for (name, kind) in &mut self.variables {
            match (name.as_str(), parameter) {
                ("object" | "oldObject", _) => *kind = object.clone(),
                ("params", Some(parameter)) => *kind = parameter.clone(),
                _ => {}
            }
        }
        self
    }

    /// Compiles an expression in this scope.
    pub fn compile(&self, expression: &str) -> Result<Program, CompileError> {
        let mut variables = self.variables.clone();
        if self.composes {
            let fields = self.defined.iter().map(|(name, kind)| (name.as_str(), kind.clone())).collect();
            variables.push(("variables".to_owned(), object("kubernetes.variables", fields)));
        }
        Program::compile(expression, &variables)
    }

    /// Declares a variable for later expressions.
    pub fn declare(&mut self, name: &str, kind: Type) {
        self.defined.push((name.to_owned(), kind));
    }

    /// The same with the variables of a policy, which are added as they are defined.
    pub fn composing(self) -> Self {
        Scope { composes: true, ..self }
    }

    /// Validates an expression, which must evaluate to one of the expected types; to any type if there are none.
    pub fn validate(&self, errors: &mut Errors, path: &Path<'_>, expression: &str, expected: &[Type]) -> Type {
        match self.compile(expression) {
            Err(wrong) => {
                errors.invalid(path, expression, format!("compilation failed: {wrong}"));
                Type::Dyn
            }
            Ok(program) => {
                let fits = |kind: &Type| match (kind, program.kind()) {
                    // An empty list is a list of any type.
                    (Type::List(_), Type::List(element)) if **element == Type::Dyn => true,
                    (expected, found) => expected == found,
                };
                if !expected.is_empty() && !expected.iter().any(fits) {
                    errors.invalid(path, expression, mismatch(expected, program.kind()));
                }
                program.kind().clone()
            }
        }
    }

    /// Validates a variable and declares it for later expressions.
    pub fn define(&mut self, errors: &mut Errors, path: &Path<'_>, name: &str, expression: &str) {
        let kind = self.validate(errors, path, expression, &[]);
        self.declare(name, kind);
    }
}

fn mismatch(expected: &[Type], found: &Type) -> String {
    let rendered = |kind: &Type| match kind {
        Type::Null => "null_type".to_owned(),
        kind => kind.to_string(),
    };
    let found = rendered(found);
    match expected {
        [one] => format!("must evaluate to {} but got {found}", rendered(one)),
        several => {
            let names: Vec<String> = several.iter().map(rendered).collect();
            format!("must evaluate to one of [{}] but got {found}", names.join(" "))
        }
    }
}

fn request_type() -> Type {
    let kind = object(
        "kubernetes.GroupVersionKind",
        vec![("group", Type::String), ("version", Type::String), ("kind", Type::String)],
    );
    let resource = object(
        "kubernetes.GroupVersionResource",
        vec![("group", Type::String), ("version", Type::String), ("resource", Type::String)],
    );
    let user = object(
        "kubernetes.UserInfo",
        vec![
            ("username", Type::String),
            ("uid", Type::String),
            ("groups", Type::list(Type::String)),
            ("extra", Type::map(Type::String, Type::list(Type::String))),
        ],
    );
    object(
        "kubernetes.AdmissionRequest",
        vec![
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", Type::String),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", Type::String),
            ("name", Type::String),
            ("namespace", Type::String),
            ("operation", Type::String),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
}

fn namespace_type() -> Type {
    let texts = || Type::map(Type::String, Type::String);
    let condition = object(
        "kubernetes.NamespaceCondition",
        vec![
            ("status", Type::String),
            ("type", Type::String),
            ("lastTransitionTime", Type::Timestamp),
            ("message", Type::String),
            ("reason", Type::String),
        ],
    );
    let metadata = object(
        "kubernetes.NamespaceMetadata",
        vec![
            ("name", Type::String),
            ("generateName", Type::String),
            ("namespace", Type::String),
            ("labels", texts()),
            ("annotations", texts()),
            ("UID", Type::String),
            ("creationTimestamp", Type::Timestamp),
            ("deletionGracePeriodSeconds", Type::Int),
            ("deletionTimestamp", Type::Timestamp),
            ("generation", Type::Int),
            ("resourceVersion", Type::String),
            ("finalizers", Type::list(Type::String)),
        ],
    );
    let spec = object("kubernetes.NamespaceSpec", vec![("finalizers", Type::list(Type::String))]);
    let status =
        object("kubernetes.NamespaceStatus", vec![("conditions", Type::list(condition)), ("phase", Type::String)]);
    object("kubernetes.Namespace", vec![("metadata", metadata), ("spec", spec), ("status", status)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_checked() {
        let mut scope = Scope::new(false).composing();
        let mut errors = Errors::new();
        scope.define(&mut errors, &Path::root("v"), "big", "object.spec.replicas > 5");
        for (expression, wrong) in [
            ("variables.big && request.operation == 'CREATE'", None),
            ("request.name", Some("must evaluate to bool but got string")),
            (
                "params.x",
                Some("compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')"),
            ),
        ] {
            let mut errors = Errors::new();
            scope.validate(&mut errors, &Path::root("e"), expression, &[Type::Bool]);
            let found = errors.0.first().map(|error| error.detail.lines().next().unwrap_or_default().to_owned());
            assert_eq!(found.as_deref(), wrong, "{expression}");
        }
        assert!(errors.is_empty());
    }
}
