/* The browser's own form fields as Dash components (controls.py). */
(function () {
  "use strict";

  const draw = window.React.createElement;
  const labelled = (option) => (typeof option === "string" ? { label: option, value: option } : option);

  function Select({ id, options, empty, value, setProps }) {
    const item = ({ label, value: own, options: group }) =>
      group
        ? draw("optgroup", { key: label, label }, group.map(labelled).map(item))
        : draw("option", { key: own, value: own }, label);
    const items = [...(empty ? [{ label: empty, value: "" }] : []), ...options.map(labelled)];
    return draw(
      "select",
      { id, value: value ?? "", onChange: (event) => setProps({ value: event.target.value || null }) },
      items.map(item),
    );
  }

  function Choices({ id, type, title, options, value, setProps }) {
    const chosen = (option) => (type === "radio" ? option === value : value.includes(option));
    const items = options.map(labelled);
    const change = ({ target }) => {
      const ticked = (item) => (item.value === target.value ? target.checked : chosen(item.value));
      setProps({ value: type === "radio" ? target.value : items.filter(ticked).map((item) => item.value) });
    };
    return draw(
      "fieldset",
      { id, className: "flag" },
      title && draw("legend", { className: "hidden" }, title),
      items.map((item) =>
        draw(
          "label",
          { key: item.value },
          draw("input", { type, name: id, value: item.value, checked: chosen(item.value), onChange: change }),
          item.label,
        ),
      ),
    );
  }

  let files = 0;

  function FileField({ id, title, accept, limit, setProps }) {
    const [over, setOver] = window.React.useState(false);
    const take = (file) => {
      if (!file) return;
      const reader = new FileReader();
      files += 1;
      const number = files;
      reader.onload = () => setProps({ file: { name: file.name, contents: reader.result, number } });
      // no more than the server needs to see that it is too much
      reader.readAsDataURL(file.slice(0, limit + 1));
    };
    const drag = (inside) => (event) => {
      event.preventDefault();
      setOver(inside);
    };
    return draw(
      "label",
      {
        className: over ? "upload active" : "upload",
        onDragOver: drag(true),
        onDragLeave: drag(false),
        onDrop: (event) => {
          drag(false)(event);
          take(event.dataTransfer.files[0]);
        },
      },
      title,
      draw("input", {
        id,
        type: "file",
        accept,
        className: "hidden",
        onChange: ({ target }) => {
          take(target.files[0]);
          // the same file again is a change again
          target.value = "";
        },
      }),
    );
  }

  window.ladder_sim_native = { Select, Choices, FileField };
})();
