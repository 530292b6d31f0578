// Shows openapi.json, and sends what a reader wants to try. No library, no other host.
import { make } from "./answers.js";

const $ = (id) => document.getElementById(id);
let document_ = null;

function headers(more) {
  const token = sessionStorage.getItem("token");
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

// A JSON schema with its references followed, as an example with types for values.
function shape(schema, depth = 0) {
  if (depth > 6) return "…";
  if (schema.$ref) return shape(document_.components.schemas[schema.$ref.split("/").pop()], depth + 1);
  if (schema.anyOf) return shape(schema.anyOf.find((each) => each.type !== "null"), depth);
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.const) return schema.const;
  if (schema.type === "array") return [shape(schema.items, depth + 1)];
  if (schema.type === "object" && schema.properties) {
    const entries = Object.entries(schema.properties).map(([name, each]) => {
      const optional = !(schema.required || []).includes(name);
      return [optional ? `${name}?` : name, shape(each, depth + 1)];
    });
    return Object.fromEntries(entries);
  }
  if (schema.additionalProperties && schema.additionalProperties !== true) return { "…": shape(schema.additionalProperties, depth + 1) };
  return schema.type || "any";
}

function block(title, content) {
  const part = make("div");
  if (!content) return part;
  const [type, media] = Object.entries(content)[0];
  const shown = type === "application/json" ? JSON.stringify(shape(media.schema), null, 2) : type;
  part.append(make("p", title), make("pre", shown));
  return part;
}

function operation(path, method, about) {
  const card = make("details", undefined, "card operation");
  const summary = make("summary");
  summary.append(make("span", method.toUpperCase(), "method"), make("code", path), make("span", ` ${about.summary}`));
  card.append(summary);
  const inputs = {};
  for (const parameter of about.parameters || []) {
    const label = make("label", `${parameter.name}${parameter.required ? "" : " (optional)"}${parameter.description ? `: ${parameter.description}` : ""}`);
    const field = make("input");
    inputs[parameter.name] = { field, where: parameter.in };
    label.append(field);
    card.append(label);
  }
  let body = null;
  if (about.requestBody) {
    card.append(block("Body", about.requestBody.content));
    body = make("textarea");
    body.rows = 4;
    body.setAttribute("aria-label", "Body to send");
    body.value = path.endsWith(":predict") ? '{"text": "We laughed all evening."}' : '{"rows": ["We laughed all evening."]}';
    if (path.endsWith(":tune")) body.value = '{"rows": [{"text": "We laughed all evening.", "label": "good"}]}';
    card.append(body);
  }
  for (const [status, answer] of Object.entries(about.responses)) {
    if (status < "300") card.append(block(`${status} ${answer.description}`, answer.content));
  }
  const others = Object.entries(about.responses).filter(([status]) => status >= "300").map(([status, answer]) => `${status} ${answer.description}`);
  if (others.length) card.append(make("p", `Otherwise: ${others.join(", ")}.`));
  card.append(trial(path, method, inputs, body));
  return card;
}

function trial(path, method, inputs, body) {
  const line = make("div", undefined, "line");
  const button = make("button", "Try it");
  const shown = make("pre");
  shown.hidden = true;
  button.addEventListener("click", async () => {
    let target = path;
    const sent = headers(body ? { "Content-Type": "application/json" } : {});
    for (const [name, { field, where }] of Object.entries(inputs)) {
      if (where === "path") target = target.replace(`{${name}}`, encodeURIComponent(field.value));
      else if (field.value) sent[name] = field.value;
    }
    try {
      const answer = await fetch(`.${target}`, { method: method.toUpperCase(), headers: sent, body: body ? body.value : undefined });
      const text = await answer.text();
      let pretty = text;
      try {
        pretty = JSON.stringify(JSON.parse(text), null, 2);
      } catch { /* not JSON: as it is */ }
      shown.textContent = `${answer.status}\n${pretty}`;
    } catch (error) {
      shown.textContent = error.message;
    }
    shown.hidden = false;
  });
  line.append(button);
  const both = make("div");
  both.append(line, shown);
  return both;
}

async function load() {
  const answer = await fetch("openapi.json", { headers: headers({}) });
  $("token-form").hidden = answer.status !== 401;
  if (!answer.ok) return;
  document_ = await answer.json();
  const shown = Object.entries(document_.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, about]) => operation(path, method, about)));
  $("operations").replaceChildren(...shown);
}

$("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value.trim());
  await load();
});

load().catch((error) => {
  $("error").textContent = error.message;
  $("error").hidden = false;
});
