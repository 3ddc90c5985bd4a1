//! Messages of a request as steps of its chain.

use super::super::projection::{Key, Node, Projection, Role};
use super::Group;

/// Puts messages together that mean one: what an assistant says in several items, and results that came in any order.
pub struct Grouping<'a> {
    key: &'a Key,
    groups: Vec<Group>,
    open: Option<Open>,
}

/// A group to which the next message may belong.
struct Open {
    role: Role,
    texts: Vec<Node>,
    calls: Vec<Node>,
    results: Vec<Node>,
    anchors: Vec<Node>,
    messages: u32,
}

impl<'a> Grouping<'a> {
    pub fn new(key: &'a Key) -> Self {
        Grouping { key, groups: Vec::new(), open: None }
    }

    pub fn take(&mut self, projection: &Projection, messages: u32) {
        match projection.role {
            Role::System | Role::Nothing => {}
            Role::Tool => self.add(Role::Tool, projection, messages),
            Role::User => {
                if !projection.results.is_empty() {
                    self.add(Role::Tool, &Projection { text: None, ..projection.clone() }, messages);
                }
                if projection.text.is_some() {
                    self.add(Role::User, &Projection { results: Vec::new(), ..projection.clone() }, messages);
                }
            }
            role => self.add(role, projection, messages),
        }
    }

    fn add(&mut self, role: Role, projection: &Projection, messages: u32) {
        let joins = matches!(role, Role::Assistant | Role::Tool);
        if self.open.as_ref().is_none_or(|open| !joins || open.role != role) {
            self.close();
            self.open = Some(Open {
                role,
                texts: Vec::new(),
                calls: Vec::new(),
                results: Vec::new(),
                anchors: Vec::new(),
                messages,
            });
        }
        let Some(open) = &mut self.open else { return };
        open.texts.extend(projection.text);
        open.calls.extend(&projection.calls);
        open.results.extend(&projection.results);
        open.anchors.extend(&projection.anchors);
        open.messages = messages;
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let hash = self.key.group(open.role, &open.texts, &open.calls, &open.results);
        let assistant = open.role == Role::Assistant;
        self.groups.push(Group { hash, messages: open.messages, assistant, anchors: open.anchors });
    }

    pub fn finish(mut self) -> Vec<Group> {
        self.close();
        self.groups
    }
}
