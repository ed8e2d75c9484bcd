"use strict";

// The slider: what the chosen ε means, in plain numbers and a hundred dots.
function followSlider(form) {
  const stops = JSON.parse(form.dataset.stops);
  const slider = form.querySelector("#epsilon");
  const dots = form.querySelectorAll("#dots circle");
  function show() {
    const [epsilon, factor, level, right] = stops[Number(slider.value)];
    form.querySelector("#epsilon-value").textContent = epsilon;
    form.querySelector("#level").textContent = level;
    form.querySelector("#factor").textContent = factor;
    form.querySelector("#right").textContent = right;
    form.querySelector("#dots").setAttribute("aria-label", `Of 100 guesses, at most ${right} are right`);
    slider.setAttribute("aria-valuetext", `ε ${epsilon}, ${level} guarantee`);
    dots.forEach((dot, number) => {
      dot.setAttribute("class", number < 50 ? "chance" : number < right ? "added" : "rest");
    });
  }
  slider.addEventListener("input", show);
  for (const purpose of form.querySelectorAll("input[name=purpose]")) {
    purpose.addEventListener("change", () => {
      slider.value = purpose.dataset.stop;
      show();
    });
  }
  show();
}

// The progress of a job, from the server's event stream. Everything is set as text, never as markup.
function followJob(job) {
  const lost = job.querySelector("#lost");
  let ended = job.dataset.ended === "true";
  let source = null;
  let timer = null;

  function close() {
    window.clearTimeout(timer);
    if (source) source.close();
    source = timer = null;
  }

  // A hidden tab has no stream: browsers allow six connections to a server, over all tabs.
  function open() {
    close();
    if (ended || document.hidden) return;
    source = new EventSource(job.dataset.events);
    source.addEventListener("message", (event) => {
      const view = JSON.parse(event.data);
      lost.hidden = true;
      showJob(job, view);
      ended = view.ended || view.state === "done";
      if (ended) close();
      if (view.state === "done") window.location.assign(job.dataset.next);
    });
    source.addEventListener("error", () => {
      // After a refusal, as by a server with another token, the browser itself would not try again.
      close();
      lost.hidden = false;
      timer = window.setTimeout(open, 5000);
    });
  }

  document.addEventListener("visibilitychange", open);
  open();
}

function showJob(job, view) {
  const final = !["queued", "running"].includes(view.state);
  const state = job.querySelector("#state");
  state.textContent = view.state;
  state.className = `state ${view.state}`;
  job.querySelector("#stopping").hidden = final || !view.stopping;
  job.querySelector("#stop").hidden = final;
  job.querySelector("#next").hidden = view.state !== "done";
  job.querySelector("#resume").hidden = !["stopped", "failed", "interrupted"].includes(view.state);
  job.querySelector("#spent").hidden = view.epsilon === null;
  if (view.epsilon !== null) job.querySelector("#epsilon-spent").textContent = view.epsilon.toPrecision(3);
  job.querySelector("#waiting").hidden = view.state !== "queued" || job.dataset.queues !== "true";
  job.querySelector("#log").textContent = view.log.join("\n");
  job.querySelector("#parts").replaceChildren(...view.parts.map(progressOf));
}

function progressOf(part) {
  const label = document.createElement("label");
  const bar = document.createElement("progress");
  const text = document.createElement("span");
  bar.max = part.total || 1;
  if (part.total) {
    bar.value = part.done;
    text.textContent = `${part.done} of ${part.total}`;
  }
  label.append(`${part.name} `, bar, text);
  return label;
}

const form = document.getElementById("choices");
if (form) followSlider(form);
const job = document.getElementById("job");
if (job) followJob(job);
