//! Each preset reads the responses of its API, as its documentation shows them.

use super::*;

fn cost(
    preset: Preset,
    format: BodyFormat,
    weights: Option<(f64, f64)>,
    body: &str,
) -> Option<u64> {
    let factor = |number| Factor::new(number).unwrap();
    let weights = weights.map(|(input, output)| (factor(input), factor(output)));
    let (paths, formula) = preset.formula(weights);
    let mut scanner = BodyScanner::new(format, Arc::new(paths.unwrap()));
    scanner.push(body.as_bytes());
    formula.cost(|path| scanner.quantity(path))
}

#[test]
fn openai_reports_totals() {
    let chat = r#"{"id":"chatcmpl-1","choices":[{"message":{"content":"{\"usage\":{\"total_tokens\":1}}"}}],
        "usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,
        "prompt_tokens_details":{"cached_tokens":0}}}"#;
    let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":10,\"total_tokens\":29}}\n\n\
        data: [DONE]\n\n";
    let responses = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n\
        event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":\
        {\"input_tokens\":19,\"output_tokens\":10,\"total_tokens\":29}}}\n\n";
    let plain_response = r#"{"usage":{"input_tokens":19,"output_tokens":10,"total_tokens":29}}"#;
    for (format, body) in [
        (BodyFormat::Json, chat),
        (BodyFormat::Events, stream),
        (BodyFormat::Events, responses),
        (BodyFormat::Json, plain_response),
    ] {
        assert_eq!(cost(Preset::Openai, format, None, body), Some(29), "{body}");
        assert_eq!(cost(Preset::Openai, format, Some((1.0, 4.0)), body), Some(59), "{body}");
    }
    let embeddings = r#"{"object":"list","data":[{"embedding":[0.1,-2e-3]}],
        "usage":{"prompt_tokens":8,"total_tokens":8}}"#;
    assert_eq!(cost(Preset::Openai, BodyFormat::Json, None, embeddings), Some(8));
    let without = "data: {\"choices\":[],\"usage\":null}\n\ndata: [DONE]\n\n";
    assert_eq!(cost(Preset::Openai, BodyFormat::Events, None, without), None);
}

#[test]
fn anthropic_reports_input_first_and_output_last() {
    let message = r#"{"type":"message","usage":{"input_tokens":2095,"output_tokens":503,
        "cache_creation_input_tokens":5,"cache_read_input_tokens":7}}"#;
    assert_eq!(cost(Preset::Anthropic, BodyFormat::Json, None, message), Some(2_610));
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":\
        {\"input_tokens\":25,\"output_tokens\":1}}}\n\n";
    let rest = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"Hi\"}}\n\n\
        event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n\
        event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let whole = format!("{start}{rest}");
    assert_eq!(cost(Preset::Anthropic, BodyFormat::Events, None, &whole), Some(40));
    assert_eq!(cost(Preset::Anthropic, BodyFormat::Events, Some((0.5, 2.0)), &whole), Some(43));
    assert_eq!(cost(Preset::Anthropic, BodyFormat::Events, None, start), None, "broken off");
}

#[test]
fn gemini_reports_the_tokens_so_far() {
    let chunk = |total| {
        format!(
            "{{\"candidates\":[],\"usageMetadata\":{{\"promptTokenCount\":4,\
             \"candidatesTokenCount\":{},\"totalTokenCount\":{total}}}}}",
            total - 4
        )
    };
    let array = format!("[{},\r\n{}]", chunk(9), chunk(20));
    let events = format!("data: {}\r\n\r\ndata: {}\r\n\r\n", chunk(9), chunk(20));
    for (format, body) in
        [(BodyFormat::Json, &chunk(20)), (BodyFormat::Json, &array), (BodyFormat::Events, &events)]
    {
        assert_eq!(cost(Preset::Gemini, format, None, body), Some(20), "{body}");
        assert_eq!(cost(Preset::Gemini, format, Some((1.0, 10.0)), body), Some(164), "{body}");
    }
}

#[test]
fn bedrock_and_ollama_report_their_own_names() {
    let converse =
        r#"{"output":{},"usage":{"inputTokens":30,"outputTokens":628,"totalTokens":658}}"#;
    let events = "data: {\"contentBlockDelta\":{}}\n\n\
        data: {\"metadata\":{\"usage\":{\"inputTokens\":30,\"outputTokens\":628,\"totalTokens\":658}}}\n\n";
    for (format, body) in [(BodyFormat::Json, converse), (BodyFormat::Events, events)] {
        assert_eq!(cost(Preset::Bedrock, format, None, body), Some(658), "{body}");
    }
    let lines = "{\"response\":\"The\",\"done\":false}\n\
        {\"response\":\"\",\"done\":true,\"prompt_eval_count\":26,\"eval_count\":290}\n";
    assert_eq!(cost(Preset::Ollama, BodyFormat::Lines, None, lines), Some(316));
}

#[test]
fn presets_have_valid_paths() {
    for preset in Preset::ALL {
        assert!(!preset.estimate().is_empty(), "{preset:?}");
        let (paths, formula) = preset.formula(None);
        let named: usize = formula.sums.iter().flatten().map(|term| term.alternatives.len()).sum();
        let written: usize = preset.terms().iter().map(|term| term.paths.len()).sum();
        assert_eq!((paths.unwrap().paths().len(), named), (written, written), "{preset:?}");
    }
}
