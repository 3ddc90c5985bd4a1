use proptest::prelude::*;

use super::*;

fn project(json: &str) -> Projection {
    let raw: &RawValue = serde_json::from_str(json).expect("the test writes JSON");
    Projection { anchors: Vec::new(), ..Key::of_tenant("default").project_anew(raw) }
}

#[track_caller]
fn same(left: &str, right: &str) {
    assert_eq!(project(left), project(right));
}

#[test]
fn harmless_drift_projects_alike() {
    same(r#"{"role":"user","content":"a b"}"#, r#"{"content":[{"type":"text","text":"a b"}],"role":"user"}"#);
    same(r#"{"role":"user","content":"a\r\nb  \n\n\n\nc\n"}"#, r#"{"role":"user","content":"a\nb\n\nc"}"#);
    same(
        r#"{"role":"assistant","content":null}"#,
        r#"{"role":"assistant","content":"","reasoning_content":"hm","refusal":null}"#,
    );
    same(
        r#"{"role":"user","content":"hi"}"#,
        r#"{"role":"user","content":[{"type":"text","text":"<system-reminder>now</system-reminder>"},{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}"#,
    );
    same(
        r#"{"role":"assistant","tool_calls":[{"id":"x","index":0,"type":"function","function":{"name":"f","arguments":"{\"b\": 1.0, \"a\":[{}], \"all\":false}"}}]}"#,
        r#"{"role":"assistant","content":"","tool_calls":[{"id":"y","type":"function","function":{"name":"f","arguments":{"a":[{}],"b":1}}}]}"#,
    );
}

#[test]
fn the_interfaces_say_the_same_in_their_own_ways() {
    same(
        r#"{"role":"assistant","tool_calls":[{"id":"x","function":{"name":"f","arguments":"{\"b\":1}"}}]}"#,
        r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"tool_use","id":"y","name":"f","input":{"b":1.0}}]}"#,
    );
    same(
        r#"{"role":"assistant","tool_calls":[{"id":"x","function":{"name":"f","arguments":"{\"b\":1}"}}]}"#,
        r#"{"type":"function_call","call_id":"z","name":"f","arguments":"{\"b\":1}"}"#,
    );
    same(
        r#"{"role":"tool","tool_call_id":"x","content":"done"}"#,
        r#"{"type":"function_call_output","call_id":"z","output":"done"}"#,
    );
    let result = project(
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":[{"type":"text","text":"done"}]}]}"#,
    );
    assert_eq!(result.results, project(r#"{"role":"tool","content":"done"}"#).results);
    assert_eq!(result.text, None, "a user who brings results only says nothing");
    assert_eq!(project(r#"{"type":"reasoning","summary":[]}"#).role, Role::Nothing);
}

#[test]
fn an_image_is_its_bytes() {
    same(
        r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}}]}"#,
        r#"{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aGk"}}]}"#,
    );
    same(
        r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}}]}"#,
        r#"{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,aGk="}]}"#,
    );
    let other = r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://h/a.png"}}]}"#;
    assert_ne!(
        project(other),
        project(r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://h/b.png"}}]}"#)
    );
}

#[test]
fn real_differences_stay() {
    let base = project(r#"{"role":"user","content":"a b"}"#);
    for other in [
        r#"{"role":"user","content":"a  b"}"#,
        r#"{"role":"user","content":"A b"}"#,
        r#"{"role":"tool","content":"a b"}"#,
        r#"{"role":"user","content":[{"type":"text","text":"a b"},{"type":"image_url","image_url":{"url":"data:,x"}}]}"#,
        r#"{"role":"user","content":"<system-reminder>a b"}"#,
    ] {
        assert_ne!(base, project(other), "{other}");
    }
    assert_eq!(project(r#"{"role":"developer","content":"x"}"#).role, Role::System);
    assert_eq!((project("7").role, project(r#"{"role":"critic"}"#).role), (Role::Other, Role::Other));
}

#[test]
fn a_response_equals_its_copy_in_the_history() {
    let choice = Choice {
        content: " Sure.\n".into(),
        reasoning_content: "thinking".into(),
        tool_calls: vec![crate::openai::ToolCall {
            id: "c".into(),
            name: "f".into(),
            arguments: "{\"x\": 1}".into(),
        }],
        ..Choice::default()
    };
    let said = Projection { anchors: Vec::new(), ..Key::of_tenant("default").project_choice(&choice, "") };
    let copy = r#"{"role":"assistant","content":"Sure.","tool_calls":[{"function":{"name":"f","arguments":"{\"x\":1,\"y\":null}"}}]}"#;
    assert_eq!(project(copy), said);
}

#[test]
fn tenants_have_unrelated_hashes() {
    assert_ne!(Key::of_tenant("a").root(), Key::of_tenant("b").root());
}

#[test]
fn what_was_seen_is_remembered_by_its_bytes() {
    let (key, mut memo) = (Key::of_tenant("default"), Memo::new(4, 4));
    let mut project = |text: &str| {
        let raw = RawValue::from_string(text.to_owned()).expect("JSON");
        key.project(&mut memo, outline::name(text.as_bytes()), &raw)
    };
    let first = project(r#"{"role":"user","content":"a"}"#);
    let again = project(r#"{"role":"user","content":"a"}"#);
    assert!(Arc::ptr_eq(&first, &again));
    assert_eq!(*project(r#"{ "role":"user","content":"a"}"#), *first);
}

proptest! {
    #[test]
    fn any_text_projects_alike_as_string_and_as_part(text in ".{0,80}") {
        let string = serde_json::json!({"role": "user", "content": text}).to_string();
        let parts = serde_json::json!({"content": [{"text": text, "type": "text"}], "role": "user"}).to_string();
        prop_assert_eq!(project(&string), project(&parts));
    }
}
