//! Functions and public items of a file, read by a parser.

use anyhow::Context as _;
use proc_macro2::{Ident, Span};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Signature, Visibility};

use crate::source::SourceFile;

#[derive(Default)]
pub struct Items {
    pub functions: Vec<Function>,
    pub public: usize,
    /// The names of public items without documentation, with their lines.
    pub undocumented: Vec<(String, usize)>,
}

/// A function or method.
pub struct Function {
    pub name: String,
    /// The number of its first line.
    pub line: usize,
    /// How many lines it has.
    pub length: usize,
    pub parameters: usize,
}

/// Reads everything outside of test modules.
pub fn read(source: &SourceFile) -> anyhow::Result<Items> {
    let file = syn::parse_file(&source.text).with_context(|| format!("cannot parse {}", source.path.display()))?;
    let mut items = Items::default();
    items.visit_file(&file);
    Ok(items)
}

impl Items {
    fn add_function(&mut self, signature: &Signature, block: Span) {
        let span = signature.span().join(block).unwrap_or(block);
        let (line, length) = (span.start().line, span.end().line - span.start().line + 1);
        let (name, parameters) = (signature.ident.to_string(), signature.inputs.len());
        self.functions.push(Function { name, line, length, parameters });
    }

    fn count_public(&mut self, visibility: &Visibility, attributes: &[Attribute], name: &Ident) {
        if matches!(visibility, Visibility::Public(_)) {
            self.public += 1;
            if !attributes.iter().any(|attribute| attribute.path().is_ident("doc")) {
                self.undocumented.push((name.to_string(), name.span().start().line));
            }
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    let is_cfg_test = |attribute: &Attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    };
    attributes.iter().any(is_cfg_test)
}

impl<'ast> Visit<'ast> for Items {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add_function(&item.sig, item.block.span());
        self.count_public(&item.vis, &item.attrs, &item.sig.ident);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add_function(&item.sig, item.block.span());
        self.count_public(&item.vis, &item.attrs, &item.sig.ident);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.count_public(&item.vis, &item.attrs, &item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.count_public(&item.vis, &item.attrs, &item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.count_public(&item.vis, &item.attrs, &item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.count_public(&item.vis, &item.attrs, &item.ident);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.count_public(&item.vis, &item.attrs, &item.ident);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.count_public(&item.vis, &item.attrs, &item.ident);
    }
}
