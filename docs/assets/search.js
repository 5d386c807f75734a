// The search takes a leading dash for "not". Options start with two, so it is given the words without them.
const text = document.querySelector("input.md-search__input");
if (text) {
  const plain = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
  Object.defineProperty(text, "value", {
    get() { return plain.get.call(this).replace(/(^|\s)-+/g, "$1"); },
    set(value) { plain.set.call(this, value); },
  });
}
