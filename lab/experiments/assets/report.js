"use strict";
// Each drawing's specification stands in the script beside it. The axes take the colour of the page's text, so a
// drawing need not be made again when the page turns dark or goes to paper.
for (const drawing of document.querySelectorAll(".drawing")) {
  const specification = JSON.parse(drawing.parentElement.querySelector("script").textContent);
  const options = {
    renderer: "svg",
    actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false },
    downloadFileName: drawing.dataset.name,
  };
  vegaEmbed(drawing, specification, options).then(
    () => { drawing.dataset.drawn = "yes"; },
    (error) => {
      drawing.textContent = `This figure cannot be drawn: ${error}`;
      console.error(drawing.dataset.name, error);
    },
  );
}
// Paper shows what is folded too.
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("section > details")) details.open = true;
});
