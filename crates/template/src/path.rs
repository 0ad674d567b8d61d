//! [`PathTemplate`]: the path of a forwarded request.

use tidegate_route::normalize::{PathError, Slashes, normalize};

use super::{Template, TemplateSegment, TemplateValues, Variable};

/// A path with parameters of the route's path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PathTemplate(Template);

impl PathTemplate {
    /// Parses a path. Its variables are `{path.NAME}` and `{path}`.
    ///
    /// # Errors
    /// What is wrong with the path: no request can be forwarded with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Err("the path must start with /".to_owned());
        }
        let template = Template::parse(text)?;
        let mut example = String::new();
        for segment in template.segments() {
            match segment {
                TemplateSegment::Text(text) => example.push_str(text),
                TemplateSegment::Variable(Variable::PathParam(_)) => example.push('x'),
                TemplateSegment::Variable(Variable::Path) if example.ends_with('/') => {
                    example.push('x');
                }
                TemplateSegment::Variable(Variable::Path) => example.push_str("/x"),
                TemplateSegment::Variable(other) => {
                    return Err(format!(
                        "`{other}` in a path, which takes {{path.NAME}} and {{path}}"
                    ));
                }
            }
        }
        let is_path_byte =
            |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '<' | '>' | '\\' | '`');
        if let Some(other) = example.chars().find(|c| !is_path_byte(*c)) {
            return Err(format!("`{}` in a path", other.escape_debug()));
        }
        match normalize(&example, Slashes::Merge) {
            Ok(normal) if *normal == *example => Ok(Self(template)),
            Ok(_) => Err("`//`, `.`, `..` or an escape that is not in normal form".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The variables, in their order.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.0.variables()
    }

    /// The path for one request, in normal form. A `//` where a value and the text meet becomes
    /// `/`.
    ///
    /// # Errors
    /// A value would change the path's shape: as a segment `.` or `..`, or as a part of an escape.
    pub fn render(&self, values: &TemplateValues<'_>) -> Result<String, PathError> {
        let mut path = Vec::with_capacity(64);
        for segment in self.0.segments() {
            match segment {
                TemplateSegment::Text(text) => {
                    let text = match text.strip_prefix('/') {
                        Some(rest) if path.ends_with(b"/") => rest,
                        _ => text,
                    };
                    path.extend_from_slice(text.as_bytes());
                }
                TemplateSegment::Variable(variable) => variable.read(values, &mut |mut value| {
                    while path.ends_with(b"/") && value.starts_with(b"/") {
                        value = &value[1..];
                    }
                    path.extend_from_slice(value);
                }),
            }
        }
        let is_plain = path.iter().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(byte));
        let path = String::from_utf8(path).ok().filter(|_| is_plain);
        let path = path.ok_or(PathError::MalformedEscape)?;
        // A `//` in the request's own path is kept unless the listener merges slashes.
        let is_normal = *normalize(&path, Slashes::Keep)? == *path;
        if is_normal { Ok(path) } else { Err(PathError::Capture) }
    }
}
