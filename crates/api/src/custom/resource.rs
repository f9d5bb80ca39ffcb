//! Decoding, defaulting and validation of custom resources by the schema of one version.

use super::coerce::{coerce_embedded, coerce_metadata};
use super::convert::convert;
use super::correlated::CorrelatedValue;
use super::defaults::set_defaults;
use super::embedded::check_embedded;
use super::list_type::check_lists;
use super::place::Place;
use super::prune::{prune, prune_nulls};
use super::rules::Rules;
use super::scale::ScalePaths;
use super::unchecked_rules::note_unchecked_rules;
use super::validate::{Validator, validate};
use crate::decode::{self, DecodeError, Decoded, StrictProblem};
use crate::field::{Errors, Path};
use crate::json_schema::JsonSchemaProps;
use crate::schema::{NodeId, NodeRef, Schema};
use serde_json::Value;

/// The schema of one version of a custom resource.
#[derive(Debug)]
pub struct CustomSchema {
    props: JsonSchemaProps,
    schema: Schema,
    root: NodeId,
    /// Nothing is pruned: the definition sets `preserveUnknownFields`.
    preserve_unknown: bool,
    scale: Option<ScalePaths>,
    validator: Validator,
    rules: Option<Rules>,
}

impl CustomSchema {
    /// Compiles a version's `openAPIV3Schema`, which must be structural.
    pub fn new(open_api_schema: &Value, preserve_unknown: bool, scale: Option<ScalePaths>) -> Self {
        let props = JsonSchemaProps::read(open_api_schema);
        let (schema, root) = convert(&props);
        let validator = Validator::new(&props);
        let rules = Rules::compile(&props, true);
        CustomSchema { props, schema, root, preserve_unknown, scale, validator, rules }
    }

    /// The root node, for field ownership and apply.
    pub fn node(&self) -> NodeRef<'_> {
        self.schema.node(self.root)
    }

    /// The schema as it was written.
    pub fn props(&self) -> &JsonSchemaProps {
        &self.props
    }

    /// Decodes a body in JSON.
    pub fn decode_json(&self, bytes: &[u8]) -> Result<Decoded, DecodeError> {
        self.fit(decode::untyped_json(bytes)?)
    }

    /// Decodes a body in YAML.
    pub fn decode_yaml(&self, bytes: &[u8]) -> Result<Decoded, DecodeError> {
        self.fit(decode::untyped_yaml(bytes)?)
    }

    /// Decodes an object in memory, such as the result of a patch.
    pub fn decode_value(&self, value: Value) -> Result<Decoded, DecodeError> {
        self.fit(Decoded { value, problems: Vec::new(), emptied: Vec::new() })
    }

    /// Prunes a stored object that an older schema may have accepted, and sets the current defaults.
    pub fn fit_stored(&self, object: &mut Value) {
        let mut unknown = Vec::new();
        // This cannot fail: malformed fields are dropped.
        let _ = self.fit_object(object, true, &mut unknown);
        self.set_defaults(object);
    }

    /// Sets the defaults of the schema. False if they take too much memory: then some are missing.
    pub fn set_defaults(&self, object: &mut Value) -> bool {
        set_defaults(object, &self.props)
    }

    /// Validates a new object. `errors` are those of its metadata: rules are evaluated only on objects without some errors.
    pub fn validate_create(&self, object: &Value, mut errors: Errors) -> Errors {
        errors.extend(validate(&self.validator, object, None, ""));
        self.check_scale(object, &mut errors);
        check_embedded(object, &self.props, &Path::default(), &mut errors);
        check_lists(object, &self.props, &Path::default(), &mut errors);
        self.check_rules(object, None, &mut errors);
        errors
    }

    /// Validates an update. Values that were invalid before and did not change are accepted.
    pub fn validate_update(&self, object: &Value, old: &Value, mut errors: Errors) -> Errors {
        let correlated = CorrelatedValue::new(object, old, &self.props);
        errors.extend(validate(&self.validator, object, Some(correlated), ""));
        self.check_scale(object, &mut errors);
        check_embedded(object, &self.props, &Path::default(), &mut errors);
        self.check_new_lists(object, old, &mut errors);
        self.check_rules(object, Some(old), &mut errors);
        errors
    }

    /// Validates an update of the status subresource.
    pub fn validate_status_update(&self, object: &Value, old: &Value, mut errors: Errors) -> Errors {
        if let (Some(status), Some(validator)) = (object.get("status"), self.validator.property("status")) {
            let correlated = CorrelatedValue::new(object, old, &self.props).field("status");
            errors.extend(validate(validator, status, correlated, "status"));
        }
        if let Some(scale) = &self.scale {
            scale.check_status(object, &mut errors);
        }
        self.check_new_lists(object, old, &mut errors);
        self.check_rules(object, Some(old), &mut errors);
        errors
    }

    fn check_scale(&self, object: &Value, errors: &mut Errors) {
        if let Some(scale) = &self.scale {
            scale.check_spec(object, errors);
            scale.check_status(object, errors);
        }
    }

    fn check_new_lists(&self, object: &Value, old: &Value, errors: &mut Errors) {
        let mut before = Errors::new();
        check_lists(old, &self.props, &Path::default(), &mut before);
        if before.is_empty() {
            check_lists(object, &self.props, &Path::default(), errors);
        }
    }

    fn check_rules(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        if let Some(rules) = &self.rules
            && !note_unchecked_rules(errors)
        {
            rules.check(&self.props, object, old, errors);
        }
    }

    fn fit(&self, decoded: Decoded) -> Result<Decoded, DecodeError> {
        let Decoded { mut value, mut problems, emptied } = decoded;
        let found = match &value {
            Value::Object(_) => None,
            Value::Null => Some("null"),
            Value::Bool(_) => Some("bool"),
            Value::Number(_) => Some("number"),
            Value::String(_) => Some("string"),
            Value::Array(_) => Some("array"),
        };
        if let Some(found) = found {
            let message = format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}");
            return Err(DecodeError::Type(message.into()));
        }
        let mut unknown = Vec::new();
        self.fit_object(&mut value, false, &mut unknown)?;
        problems.extend(unknown.into_iter().map(|path| StrictProblem::Unknown(path.into())));
        Ok(Decoded { value, problems, emptied })
    }

    fn fit_object(
        &self,
        object: &mut Value,
        drop_malformed: bool,
        unknown: &mut Vec<String>,
    ) -> Result<(), DecodeError> {
        if let Value::Object(fields) = object {
            coerce_metadata(fields, "", drop_malformed, unknown)?;
        }
        if !self.preserve_unknown {
            unknown.extend(prune(object, &self.props));
            prune_nulls(object, Some(&self.props));
        }
        let mut within = Vec::new();
        coerce_embedded(object, &self.props, &Place::Root, drop_malformed, &mut within)
            .map_err(|message| DecodeError::Value(message.into()))?;
        within.sort();
        unknown.extend(within);
        Ok(())
    }
}
